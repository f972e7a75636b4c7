"""Small SVG pictures of a report, drawn without a plotting library."""
