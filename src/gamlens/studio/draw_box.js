const inside = (value) => Math.min(1, Math.max(0, value));
const boxOf = (frame) => frame.dataset.draw ? frame.dataset.draw.split(' ').map(Number) : null;
let drawing = null;
const spot = (event) => {
  const area = drawing.frame.getBoundingClientRect();
  return [inside((event.clientX - area.left) / area.width), inside((event.clientY - area.top) / area.height)];
};
const show = (frame, [x0, y0, x1, y1]) => {
  const box = frame.querySelector('.gl-box');
  const at = {left: x0, top: y0, width: x1 - x0, height: y1 - y0};
  for (const name in at) box.style[name] = `${100 * at[name]}%`;
  box.hidden = false;
  frame.dataset.draw = [x0, y0, x1, y1].join(' ');
};
const drawn = (event) => {
  const [[a, b], [c, d]] = [drawing.start, spot(event)];
  return [Math.min(a, c), Math.min(b, d), Math.max(a, c), Math.max(b, d)];
};
element.addEventListener('pointerdown', (event) => {
  const frame = event.target.closest('[data-draw]');
  if (!frame || !event.isPrimary || event.button) return;
  drawing = {frame, from: [event.clientX, event.clientY], moved: false};
  drawing.start = spot(event);
  frame.setPointerCapture(event.pointerId);
});
element.addEventListener('pointermove', (event) => {
  if (!drawing || !event.isPrimary) return;
  drawing.moved ||= Math.hypot(event.clientX - drawing.from[0], event.clientY - drawing.from[1]) > 6;
  if (drawing.moved) show(drawing.frame, drawn(event));
});
element.addEventListener('pointerup', (event) => {
  if (!drawing || !event.isPrimary) return;
  const found = drawing.moved ? drawn(event) : drawing.start;
  drawing = null;
  trigger('click', {region: found});
});
element.addEventListener('pointercancel', () => { drawing = null; });
element.addEventListener('keydown', (event) => {
  const frame = event.target.closest('[data-draw]');
  const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
  if (!frame || !step) return;
  event.preventDefault();
  let [x0, y0, x1, y1] = boxOf(frame) || [0.3, 0.3, 0.7, 0.7];
  const [dx, dy] = step.map((one) => one / 14);
  if (event.shiftKey) {
    [x1, y1] = [Math.max(x0 + 1 / 14, inside(x1 + dx)), Math.max(y0 + 1 / 14, inside(y1 + dy))];
  } else {
    const [right, down] = [Math.min(1 - x1, Math.max(-x0, dx)), Math.min(1 - y1, Math.max(-y0, dy))];
    [x0, y0, x1, y1] = [x0 + right, y0 + down, x1 + right, y1 + down];
  }
  show(frame, [x0, y0, x1, y1]);
  trigger('click', {region: [x0, y0, x1, y1]});
});
