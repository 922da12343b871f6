"""Results for people: the text and the page of each, from the same rows."""
