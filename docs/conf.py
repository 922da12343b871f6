"""The documentation: pip install '.[docs]' && python -m sphinx -W docs build/docs"""

project = "rmsnorm_export"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_theme_options = {"top_of_page_buttons": []}
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# The tests run the notebooks; outputs are not kept, so that none is older than the code.
nb_execution_mode = "off"
# The signatures are those of the commands' records, which say what an absent option comes to.
smartquotes = False  # "--flag" and "text" are code wherever they stand
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
