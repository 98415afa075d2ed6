"""Tables, figures and page of the scored runs, from results/ alone."""
