"""What a gallery holds, and whose it is."""

from __future__ import annotations

import pickle

import nets
import pytest
import torch

from gamlens import Gallery, GamlensError, Lens

X, Y = nets.images(2), nets.images(5, seed=1)


def test_gallery() -> None:
    lens = Lens(nets.small())
    gallery = lens.remember(Y, batch_size=2)
    assert len(gallery) == 5
    assert repr(gallery).startswith("<Gallery of 5 by Small, linear:")
    part = gallery[[3, 1]]
    assert [picture.name for picture in part.pictures] == ["image 3", "image 1"]
    torch.testing.assert_close(part.embeddings, gallery.embeddings[[3, 1]])
    assert len(gallery[2]) == 1
    assert len(gallery[1:]) == 4
    assert gallery.nbytes == sum(t.nbytes for t in (gallery.activations, gallery.embeddings, gallery.scales))
    with pytest.raises(IndexError, match="no image 7: the gallery has 5 images"):
        gallery[7]
    torch.testing.assert_close(
        lens.compare_many(part[0], gallery, pairs=[(0, 0)]).scores[0], lens.compare(Y[3:4], Y[:1]).scores[0]
    )


def test_a_gallery_of_another_model() -> None:
    lens = Lens(nets.small())
    gallery = lens.remember(Y)
    for other, message in (
        (Lens(nets.small(seed=1)), "its weights are others, or have changed"),
        (Lens(nets.seeded(nets.DenseLike, inplace=False)), "model 'Small', and this lens has 'DenseLike'"),
        (Lens(nets.small(), blocks=["layer2"]), "block 'layer3', and this lens has 'layer2'"),
        (Lens(nets.small(), precision="bf16"), "precision 'fp32', and this lens has 'bf16'"),
        (Lens(nets.small(), embedding="fc"), "embedding"),
    ):
        with pytest.raises(GamlensError, match=message):
            other.compare_many(X, gallery)
    with torch.no_grad():
        lens.model.layer1[0].weight += 1e-3
    with pytest.raises(GamlensError, match="have changed since"):
        lens.compare_many(gallery, X)


def test_a_gallery_with_earlier_blocks() -> None:
    """What the network computed, moved, cut and counted along with the rest."""
    lens = Lens(nets.small())
    gallery, plain = lens.remember(Y, batch_size=2, refine=2), lens.remember(Y, batch_size=2)
    assert plain.earlier == {}
    assert list(gallery.earlier) == ["layer1", "layer2"]
    with torch.no_grad():
        first = lens.model.layer1(lens.model.stem(Y))
    torch.testing.assert_close(gallery.earlier["layer1"], first)
    torch.testing.assert_close(gallery.earlier["layer2"], lens.model.layer2(first).detach())
    assert gallery.nbytes == plain.nbytes + sum(h.nbytes for h in gallery.earlier.values())
    part = gallery[[3, 1]].to("cpu")
    for name, h in gallery.earlier.items():
        assert not h.requires_grad
        assert torch.equal(part.earlier[name], h[[3, 1]])
    assert list(lens.remember(Y, refine=1).earlier) == ["layer2"]
    assert gallery.about == plain.about


def test_pickled_galleries() -> None:
    """With earlier blocks; and as older versions pickled them, which knew of none."""
    gallery = Lens(nets.small()).remember(Y, refine=2)
    again = pickle.loads(pickle.dumps(gallery))
    assert again.about == gallery.about
    for name, h in gallery.earlier.items():
        assert torch.equal(again.earlier[name], h)
    old = object.__new__(Gallery)
    old.__setstate__({name: value for name, value in vars(gallery).items() if name != "earlier"})
    assert old.earlier == {}
    assert old[:1].nbytes < gallery[:1].nbytes
