"""What worlds of whole processes share: the run, its disk, the words of answers, and the check of stores."""
