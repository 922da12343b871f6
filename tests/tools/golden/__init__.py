"""The net: what ``optimize`` writes and reports for a catalogue of models, frozen and compared.

``python -m tests.tools.golden`` compares with the text files in ``frozen`` and ``corpus``.
"""
