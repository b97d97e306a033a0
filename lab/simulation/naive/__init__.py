"""A second fold, as plain as the rules allow: the judge of the real one. It shares no code with `consumers`."""
