"""The steps of ranks in a launch: which rank sends which elements to which, and in which order numbers are added."""
