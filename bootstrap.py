"""Make the environment: .venv with the pinned versions, and the plugin in it. Run by ``make``.

Runs on any Python 3, so that a wrong one can be told what to do. Everything installs from wheels
(one small pure-Python package is built): no compiler is needed.
"""

import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
READY = os.path.join(VENV, ".ready")
SUPPORTED = ("3.12", "3.11")
NEEDED_GB = 3
# What pip says, and what that means. The first that matches is shown.
CAUSES = (
    (
        ("No space left on device", "Disk quota exceeded"),
        "the disk is full: free about {gb} GB (10 GB for a CUDA build of torch) where {venv} and "
        "the temporary folder (TMPDIR) are, then run the same command again",
    ),
    (
        (
            "NewConnectionError",
            "Temporary failure in name resolution",
            "Connection refused",
            "ConnectTimeoutError",
            "ReadTimeoutError",
            "ProxyError",
            "Could not fetch URL",
        ),
        "the package index cannot be reached: check the network (or point PIP_INDEX_URL at a "
        "mirror), then run the same command again",
    ),
    (
        ("DO NOT MATCH THE HASHES",),
        "a downloaded file is not the one that was tested (its hash differs): do not use it; "
        "check which package index pip is set to use",
    ),
    (
        ("No matching distribution found",),
        "the package index has no wheel of the package named above for this platform: x86_64 "
        "Linux with glibc 2.28 or newer is supported (see 'Other Pythons' in README.md)",
    ),
    (
        ("error: command 'gcc' failed", "error: command 'cc' failed", "Microsoft Visual C++"),
        "a package was about to be compiled and no compiler is there: install the pinned "
        "versions on x86_64 Linux, where all of them have wheels",
    ),
)


def fail(sentence):
    sys.exit("error: " + sentence)


def supported_python():
    """Path of this Python if it is supported, else of one on the PATH that is."""
    if "{}.{}".format(*sys.version_info[:2]) in SUPPORTED:
        return sys.executable
    for version in SUPPORTED:
        found = shutil.which("python" + version)
        if found and subprocess.call([found, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            return found
    fail(
        "Python 3.11 or 3.12 is needed, this is {}.{}: install one of them, or name it, as in "
        "`make demo PYTHON=/usr/bin/python3.11`".format(*sys.version_info[:2])
    )


def check_disk():
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < NEEDED_GB:
        fail(
            f"{free:.1f} GB are free on the disk of {ROOT}, about {NEEDED_GB} GB are needed: "
            "free some, then run the same command again"
        )


def make_venv(python):
    if subprocess.call([python, "-c", "import venv, ensurepip"], stderr=subprocess.DEVNULL):
        fail("this Python has no venv module: install it (Debian: `apt install python3-venv`)")
    if subprocess.call([python, "-m", "venv", "--clear", VENV]):
        fail(f"cannot make {VENV}: see the message above")


def pip(*arguments):
    """Run pip in the environment, showing what it says; explain a failure in one sentence."""
    command = [os.path.join(VENV, "bin", "python"), "-m", "pip", "--disable-pip-version-check"]
    process = subprocess.Popen(
        command + list(arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    said = []
    for line in process.stdout:
        said.append(line)
        if not line.startswith("Requirement already satisfied"):
            print("  " + line, end="", flush=True)
    if process.wait():
        text = "".join(said)
        for signs, sentence in CAUSES:
            if any(sign in text for sign in signs):
                fail(sentence.format(gb=NEEDED_GB, venv=VENV))
        fail("pip failed, see its last lines above")


def main():
    python = supported_python()
    check_disk()
    print(f"making {VENV} with {python}", flush=True)
    make_venv(python)
    print("installing the pinned versions: a minute or two where torch is a CPU build", flush=True)
    pip("install", "--only-binary", ":all:", "--no-deps", "--require-hashes", "-r", "fairseq.txt")
    pip("install", "-c", "constraints.txt", "-e", ".[dev]")
    pip("check")
    versions = [os.path.join(VENV, "bin", "python"), os.path.join("qknorm_mt", "compat.py")]
    if subprocess.call(versions, cwd=ROOT):
        fail("the installed versions do not go together: see above")
    with open(READY, "w") as file:
        file.write(python + "\n")


if __name__ == "__main__":
    main()
