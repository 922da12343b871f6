"""The steps: one module each, with what its result depends on, what it needs, and the work.

Every module has the functions of ``base.Step``.
"""
