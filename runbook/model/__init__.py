"""Vocabulary: the values that flow from box to box. Frozen, without behaviour that touches the world.

`incident` (all of one failure), `job` and `node` (what scheduler and node say), `log` and `diagnosis` (what logs say,
and what died), `template`, `remedy` and `checkpoint` (what is changed, and gone on from), `catalogues` and `node_rules`
(what documents say of nodes), `message` (what people are told), `units` (distinct types, figures that may be unknown).
"""
