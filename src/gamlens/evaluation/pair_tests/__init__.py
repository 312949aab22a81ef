"""Tests of explanations of pairs, on cases that are built from a labelled data set.

    curves    the similarity while pixels of one image appear or vanish in the order of its map (insertion, deletion)
    objects   scenes of k objects that share one class: is the shared object found, and the link between the two?
    patch     a patch of x is copied into an unrelated y: is it found on both sides?
    partner   the map of x must change when the partner of x does
    boxes     both maps against the ground-truth boxes

`pair_cases` draws the cases, `case_images` makes their images, `pair_explainers` the maps, `pair_measures` the numbers;
`pair_runs` is the run folder that resumes, `pair_numbers` and `pair_texts` make tables of its rows, and `pair_page`
shows them with pictures of some cases.

Forwards per case (each of one image; W windows of the occlusion, S steps of the curves, E explainers with controls):

    photos (curves, partner, boxes)   2 plain + 2 traced for (x, y), 2 for (x, z), 2 W, and 4 (S - 1) E for the curves
    scenes (objects)                  2 plain + 2 traced, 2 k of single objects, 2 W
    patches (patch)                   2 plain + 2 traced, 2 W

The windows of x serve both of its partners. With S = 10, W = 49 and E = 12 a case of photos takes about 540 forwards,
of which 432 are those of the curves; a scene of 4 objects takes 110, and a patch 102. An explainer that needs forwards
of its own (captum:..., input_gradient) takes them beside these.
"""
