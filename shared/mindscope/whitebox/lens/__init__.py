"""Lenses: what a residual stream, carried to the last block by a linear map, would say through the model's own
head. The logit lens uses the identity, the J-lens the mean Jacobian, the R-lens the same through a graph with
relevance rules, J++ a weighted sum of Jacobians of kinds of positions.

`lens` is the fitted thing, `files` reads and writes it, `fit` makes one; `jacobian`, `lrp`, `router`, `shards` and
`weights` are what fitting is made of.
"""
