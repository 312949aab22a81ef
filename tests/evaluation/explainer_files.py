"""Python files with explainers, as a user writes them, for the tests of explainers that are not ours."""

from __future__ import annotations

CLASSES_AND_PAIRS = '''
import torch

def explain(model, batch, targets):
    """Input times gradient of the class score."""
    batch.requires_grad_(True)
    scores = model(batch).gather(1, targets[:, None]).sum()
    (gradient,) = torch.autograd.grad(scores, batch)
    return (batch * gradient).sum(dim=1).abs()

def explain_pair(model, x, y, score):
    """Input times gradient of the similarity, for both images."""
    maps = []
    for side, other in ((x, y), (y, x)):
        side = side.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(score(model(side), model(other).detach()).sum(), side)
        maps.append((side * gradient).sum(dim=1).abs().detach().numpy())
    return maps

def many(model, batch, targets, other, further):
    """Takes too many parameters."""
'''

BROKEN = """
import torch

def nothing(model, batch, targets):
    pass

def flat_list(model, batch, targets):
    return torch.zeros(len(batch), 3)

def no_numbers(model, batch, targets):
    return batch.new_full((len(batch), 8, 8), float("nan"))

def words(model, batch, targets):
    return "a map"

def raises(model, batch, targets):
    model.train()
    model.fc.weight.requires_grad_(False)
    model.fc.register_forward_hook(lambda *args: None)
    model.fc = torch.nn.Identity()
    model.added = 1
    model(batch).sum().backward()
    raise ZeroDivisionError("the original words")

def one_side(model, x, y, score):
    return x.mean(dim=1)
"""
