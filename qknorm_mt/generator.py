"""Beam search as the released code does it, behind fairseq's interface.

fairseq's own search differs in three ways, each of which can change the best hypothesis: it takes
finished hypotheses out of the beam and fills their places; it chooses among unfinished ones by
their log-probability, and applies the length penalty, a power of the length, only when one is
finished; it forces an end of sentence at the length limit.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor


def length_penalty(length: int, alpha: float) -> float:
    """``((5 + length) / 6) ** alpha`` (Wu et al. 2016, equation 14; end of sentence included)."""
    return ((5 + length) / 6) ** alpha


class PaperBeamSearch(SequenceGenerator):
    """Beam search that keeps finished hypotheses in the beam.

    Every hypothesis, finished or not, is ranked by its log-probability over
    :func:`length_penalty`. A sentence ends when its whole beam is finished, or at its own limit
    of tokens, ``max_len_a`` times its source (end of sentence included) plus ``max_len_b``; what
    is unfinished then stays without an end of sentence. The end of sentence never comes first.

    Options are fairseq's: ``--beam``, ``--lenpen`` (alpha), ``--max-len-a``, ``--max-len-b``.

    Raises:
        ValueError: for an option that has no meaning here.
    """

    def __init__(self, models: list[torch.nn.Module], tgt_dict: Dictionary, **options: Any):
        meaningless = {
            "normalize_scores": True,
            "min_len": 1,
            "unk_penalty": 0,
            "match_source_len": False,
            "no_repeat_ngram_size": 0,
            "lm_model": None,
            "tokens_to_suppress": (),
        }
        for name, only in meaningless.items():
            if options.get(name, only) != only:
                raise ValueError(
                    f"{name}={options[name]!r} is not allowed: legal is {only} with the paper's "
                    "beam search (--beam-search paper)"
                )
        super().__init__(models, tgt_dict, **options)
        if type(self.search) is not BeamSearch:
            raise ValueError(
                f"{type(self.search).__name__} is not allowed: legal is plain beam search with the "
                "paper's (--beam-search paper)"
            )

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[dict[str, Tensor]]]:
        """Hypotheses of each sentence, best first (fairseq's hook)."""
        if prefix_tokens is not None or constraints is not None:
            raise ValueError("the paper's beam search takes no prefix tokens and no constraints")
        source = sample["net_input"]["src_tokens"]
        limits = (self.max_len_a * source.ne(self.pad).sum(1) + self.max_len_b).long()
        limits = limits.clamp(max=self.max_len - 1)  # (batch,)
        beam = Beam(
            source.size(0),
            self.beam_size,
            self.eos,
            self.eos if bos_token is None else bos_token,
            source.device,
        )
        states: list[dict] = [{} for _ in range(self.model.models_size)]
        encoded = self.model.forward_encoder(sample["net_input"])
        encoded = self.model.reorder_encoder_out(encoded, beam.rows.repeat_interleave(beam.size))
        hypotheses: list[list[dict[str, Tensor]]] = [[] for _ in range(source.size(0))]
        while True:
            lprobs, _ = self.model.forward_decoder(beam.tokens, encoded, states, self.temperature)
            lprobs[lprobs != lprobs] = float("-inf")
            lprobs[:, self.pad] = float("-inf")
            parents = beam.step(lprobs, self.len_penalty)
            done = beam.finished() | (beam.length >= limits[beam.rows])
            for i in done.nonzero().flatten().tolist():
                hypotheses[int(beam.rows[i])] = beam.hypotheses(i)
            if done.all():
                return hypotheses
            parents = parents[beam.keep(~done)]
            self.model.reorder_incremental_state(states, parents)
            encoded = self.model.reorder_encoder_out(encoded, parents)


class Beam:
    """The hypotheses of the sentences still being decoded, ``size`` rows for each.

    Attributes:
        rows: ``(sentences,)``, which sentence of the batch each is.
        tokens: ``(sentences * size, 1 + length)``, the start symbol first.
        lprobs: ``(sentences * size, length)``, cumulative log-probabilities.
        scores: ``(sentences * size,)``, the last of them over the length penalty.
    """

    def __init__(self, sentences: int, size: int, eos: int, start: int, device: torch.device):
        self.size, self.eos = size, eos
        self.rows = torch.arange(sentences, device=device)
        self.tokens = torch.full((sentences * size, 1), start, device=device)
        self.lprobs = torch.zeros(sentences * size, 0, device=device)
        self.scores = torch.zeros(sentences * size, device=device)

    @property
    def length(self) -> int:
        return self.lprobs.size(1)

    def step(self, lprobs: Tensor, alpha: float) -> Tensor:
        """Go on with the best continuations.

        Args:
            lprobs: ``(sentences * size, types)`` of the next token.
            alpha: exponent of the length penalty.

        Returns:
            ``(sentences * size,)``: the row that each new row continues.
        """
        types = lprobs.size(1)
        if self.length == 0:
            lprobs[:, self.eos] = float("-inf")
            lprobs.view(-1, self.size, types)[:, 1:] = float("-inf")  # all rows are the same yet
            total = score = lprobs
        else:
            total = self.lprobs[:, -1:] + lprobs
            score = total / length_penalty(self.length + 1, alpha)
            ended = self.tokens[:, -1] == self.eos
            # A finished hypothesis goes on as itself: with an end of sentence, at its own score.
            for values, kept in ((total, self.lprobs[:, -1]), (score, self.scores)):
                values[ended] = float("-inf")
                values[ended, self.eos] = kept[ended]
        self.scores, best = score.view(-1, self.size * types).topk(self.size)  # (sentences, size)
        first = torch.arange(len(self.rows), device=best.device)[:, None] * self.size
        parents = (first + best // types).flatten()
        symbols = (best % types).flatten()
        self.scores = self.scores.flatten()
        newest = total[parents, symbols]
        self.tokens = torch.cat([self.tokens[parents], symbols[:, None]], dim=1)
        self.lprobs = torch.cat([self.lprobs[parents], newest[:, None]], dim=1)
        return parents

    def finished(self) -> Tensor:
        """``(sentences,)``: whether all hypotheses have ended."""
        return (self.tokens[:, -1] == self.eos).view(-1, self.size).all(dim=1)

    def keep(self, sentences: Tensor) -> Tensor:
        """Drop all but these ``sentences`` (a mask); returns the mask of the rows kept."""
        rows = sentences.repeat_interleave(self.size)
        self.rows = self.rows[sentences]
        self.tokens, self.lprobs, self.scores = (
            self.tokens[rows],
            self.lprobs[rows],
            self.scores[rows],
        )
        return rows

    def hypotheses(self, sentence: int) -> list[dict[str, Tensor]]:
        """What fairseq calls hypotheses: best first, cut after the first end of sentence."""
        start = sentence * self.size
        result = []
        for row in (
            start + self.scores[start : start + self.size].argsort(descending=True)
        ).tolist():
            tokens = self.tokens[row, 1:]
            ends = (tokens == self.eos).nonzero()
            length = int(ends[0]) + 1 if len(ends) else len(tokens)
            lprobs = self.lprobs[row, :length]
            result.append(
                {
                    "tokens": tokens[:length],
                    "score": self.scores[row],
                    "attention": torch.empty(0),
                    "alignment": torch.empty(0),
                    "positional_scores": torch.diff(lprobs, prepend=lprobs.new_zeros(1)),
                }
            )
        return result
