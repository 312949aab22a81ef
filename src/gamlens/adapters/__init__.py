"""Our maps for other packages: explainers as Quantus, captum and xaitk-saliency call them, files for wsolevaluation.

None of these packages is imported here; an adapter only has the signature that the package asks for.

| call | gives | for |
| --- | --- | --- |
| `quantus(lens)` | an `explain_func` | the metrics of Quantus |
| `captum(lens)` | an object with `attribute` | `captum.metrics` |
| `xaitk(lens)` | an object with `generate(ref_image, query_images)` | tools of xaitk-saliency, similarity |
| `xaitk_classifier(lens)` | an object with `generate(ref_image)` | the same, classification |
| `export_wsol(lens, samples, folder)` | one `.npy` file per image | clovaai/wsolevaluation |
"""

from gamlens.adapters.captum_attribution import LensAttribution, captum
from gamlens.adapters.map_options import MapOptions
from gamlens.adapters.quantus_explain import QuantusExplain, quantus
from gamlens.adapters.wsol_ids import MatchedIds, WsolId, default_ids, match_ids, read_ids
from gamlens.adapters.wsol_maps import WsolExport, export_wsol
from gamlens.adapters.xaitk_saliency import ClassSaliency, SimilaritySaliency, xaitk, xaitk_classifier
