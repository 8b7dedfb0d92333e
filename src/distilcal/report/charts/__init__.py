"""The charts of the pages, as SVG that follows the page's light or dark colours.

`scales` holds axes and their ticks, `frame` the rectangle that data are drawn in, `marks` colours and shapes, `svg` elements
and text, `plot` a frame with axes and legend, `study` the kinds of charts that studies have. Figures for papers are in
`distilcal.report.figures`.
"""
