"""What pages are made of: markup, tables, drawings, and the document around the sections."""
