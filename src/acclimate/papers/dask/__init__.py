"""Knowledge in the text of a labelled source, where words occur that tell its labels (Li et al., IJCAI 2022)."""
