"""What frameworks know and their hooks can say: the run, epochs, steps as they number them, tokens.

One module for each, imported by users of that framework, as ``haiprof.integrations.lightning``.
They are only for names: steps and phases are found without them.
"""
