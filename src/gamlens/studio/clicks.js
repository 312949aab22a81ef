const ask = (frame, x, y) => {
  const clip = (v) => Math.min(1, Math.max(0, v));
  trigger('click', {side: frame.dataset.side, x: clip(x), y: clip(y)});
};
element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-pick]');
  if (button) { trigger('click', {pick: button.dataset.pick}); return; }
  if (event.target.closest('[data-ask]')) { trigger('submit', {}); return; }
  const frame = event.target.closest('[data-side]');
  if (!frame) return;
  const box = frame.getBoundingClientRect();
  ask(frame, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
});
element.addEventListener('keydown', (event) => {
  const frame = event.target.closest('[data-side]');
  const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
                Enter: [0, 0], ' ': [0, 0]}[event.key];
  if (!frame || !step) return;
  event.preventDefault();
  ask(frame, Number(frame.dataset.x) + step[0] / 14, Number(frame.dataset.y) + step[1] / 14);
});
