"""The documentation: pip install '.[docs]' && python -m sphinx -W docs build/docs"""

project = "rmsnorm_export"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = project
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# The signatures are those of the commands' records, which say what an absent option comes to.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
