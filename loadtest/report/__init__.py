"""What records add up to, and how it is shown and judged.

- percentiles.py  quantiles that refuse too few samples
- measures.py     a run's measures, each with its standard error
- baseline.py     a run against a stored one: a verdict a measure
- plots.py        plots as SVG
- page.py         the report: one HTML file, and JSON
"""
