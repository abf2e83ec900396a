"""The streams between nodes. `link` has the rules; `keeper` opens, watches and closes them."""
