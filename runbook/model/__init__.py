"""Vocabulary: the values that flow from box to box. Frozen, without behaviour that touches the world.

`incident` (all of one failure, and what people are told of it), `job` and `node` (what scheduler and node say), `log`
and `diagnosis` (what logs say, and what died), `template`, `program`, `remedy` and `checkpoint` (what is changed, what
the program takes, and what is gone on from), `catalogues` and `node_rules` (what documents say of nodes), `units`
(distinct types, figures that may be unknown).
"""
