"""The paper's figures as a grid of cells: run, condensed to numbers, drawn, judged claim by claim."""
