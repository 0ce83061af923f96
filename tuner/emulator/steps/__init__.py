"""Steps of ranks in a launch: who sends which elements to whom, and in which order numbers are added."""
