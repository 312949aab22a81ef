// The page of a ResultView. Maps come as 16-bit levels; they are drawn over the photo here, so that opacity, threshold
// and the value under the cursor need no kernel. The drawing is that of gamlens.render.overlay in the style "heat".

const WHOLE = 65535, LONGER = 448;
let made = 0;  // for ids that are unique on the page

function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const bytes = (view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
const words = (view) => new Uint16Array(bytes(view).slice().buffer);

/** Tables over 256 levels: a pixel becomes photo * keep + brightness * luma + colour. */
function tables(colours, signed, opacity) {
  const keep = new Float32Array(256), luma = new Float32Array(768), colour = new Float32Array(768);
  for (let level = 0; level < 256; level++) {
    const strength = signed ? Math.abs(2 * level / 255 - 1) : level / 255;
    const alpha = opacity * strength, quiet = opacity * (1 - strength);
    const photo = (1 - alpha) * (1 - 0.35 * quiet), grey = photo * Math.min(1.4 * quiet, 1);
    keep[level] = photo - grey;
    for (let channel = 0; channel < 3; channel++) {
      const glow = alpha * colours[3 * level + channel];
      luma[3 * level + channel] = grey + 0.32 / 255 * glow;
      colour[3 * level + channel] = 0.82 * glow;
    }
  }
  return {keep, luma, colour};
}

/** Remove the pixels of a mask that touch its border. */
function eroded(mask, width, height) {
  const found = new Uint8Array(mask.length);
  for (let y = 1; y < height - 1; y++) {
    for (let at = y * width + 1; at < (y + 1) * width - 1; at++) {
      found[at] = mask[at] & mask[at - 1] & mask[at + 1] & mask[at - width] & mask[at + width];
    }
  }
  return found;
}

/** Draw a side: photo (ImageData), levels (Uint16Array, or null for the photo alone). Returns the region's pixels. */
function draw(canvas, photo, side, levels, opacity, threshold) {
  const context = canvas.getContext("2d"), {width, height} = photo;
  if (!levels) {
    context.putImageData(photo, 0, 0);
    return null;
  }
  const {keep, luma, colour} = tables(bytes(side.colours), side.signed, opacity);
  const picture = context.createImageData(width, height), out = picture.data, data = photo.data;
  for (let at = 0; at < levels.length; at++) {
    const level = Math.round(levels[at] / WHOLE * 255), p = 4 * at, row = 3 * level;
    const grey = 0.299 * data[p] + 0.587 * data[p + 1] + 0.114 * data[p + 2];
    for (let channel = 0; channel < 3; channel++) {
      out[p + channel] = data[p + channel] * keep[level] + grey * luma[row + channel] + colour[row + channel];
    }
    out[p + 3] = 255;
  }
  let region = null;
  if (threshold > 0) {
    const least = Math.ceil(WHOLE * (threshold * side.high - side.low) / (side.high - side.low) - 1e-6);
    const mask = Uint8Array.from(levels, (level) => level >= least);
    const light = eroded(mask, width, height), dark = eroded(light, width, height);
    let count = 0, left = width, top = height, right = -1, bottom = -1;
    for (let at = 0; at < mask.length; at++) {
      if (!mask[at]) continue;
      const x = at % width, y = Math.floor(at / width);
      count++;
      left = Math.min(left, x); right = Math.max(right, x); top = Math.min(top, y); bottom = Math.max(bottom, y);
      if (light[at] && dark[at]) continue;
      const value = light[at] ? 18 : 255;
      out[4 * at] = out[4 * at + 1] = out[4 * at + 2] = value;
    }
    region = {share: count / mask.length, box: [left, top, right + 1, bottom + 1]};
  }
  context.putImageData(picture, 0, 0);
  return region;
}

/** One picture with its marks, colour bar and the value under the cursor. */
class Figure {
  constructor(name, pair, onPoint) {
    this.side = name;
    this.pair = pair;
    this.canvas = make("canvas", {tabindex: "0", role: "img", "data-side": name});
    this.marks = make("div", {"aria-hidden": "true"});
    this.value = make("output", {class: "gamlens-value", "aria-live": "polite"});
    this.ramp = make("i");
    this.needle = make("b", {hidden: true});
    this.ends = ["low", "middle", "high"].map(() => make("span"));
    this.small = make("small");
    this.bar = make("div", {class: "gamlens-bar", role: "img"}, this.ramp, this.needle, ...this.ends, this.small);
    this.label = make("strong");
    this.region = make("small");
    const words = make("figcaption", {}, this.label, " ", this.region, this.value, this.bar);
    this.node = make("figure", {}, make("div", {class: "gamlens-frame"}, this.canvas, this.marks), words);
    this.cursor = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(...this.place(event)));
    this.canvas.addEventListener("pointerleave", () => this.point());
    this.canvas.addEventListener("blur", () => this.point());
    this.canvas.addEventListener("click", (event) => onPoint(name, ...this.place(event)));
    this.canvas.addEventListener("keydown", (event) => {
      const [x, y] = this.cursor ?? [0.5, 0.5];
      const step = event.shiftKey ? 1 / this.canvas.width : 1 / 28;
      const moves = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step]};
      if (event.key in moves) {
        const clip = (number) => Math.min(0.9999, Math.max(0, number));
        this.point(clip(x + moves[event.key][0]), clip(y + moves[event.key][1]), true);
      } else if (event.key === "Enter" || event.key === " ") onPoint(name, x, y);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const clip = (number) => Math.min(0.9999, Math.max(0, number));
    return [clip((event.clientX - box.left) / box.width), clip((event.clientY - box.top) / box.height)];
  }

  /** Take over a photo, (source, size, original, name), and decode it; not if a later one was asked for meanwhile. */
  async load(photo) {
    const turn = this.turn = (this.turn ?? 0) + 1;
    if (this.photo?.source === photo.source) return;
    const image = new Image();
    image.src = photo.source;
    await image.decode();
    if (turn !== this.turn) return;
    [this.canvas.width, this.canvas.height] = photo.size;
    const context = this.canvas.getContext("2d", {willReadFrequently: true});
    context.drawImage(image, 0, 0, ...photo.size);
    this.pixels = context.getImageData(0, 0, ...photo.size);
    // The longer side is shown LONGER pixels long, so that small images can be looked at, too.
    const shown = LONGER * photo.size[0] / Math.max(...photo.size);
    this.canvas.style.width = `${shown}px`;
    this.canvas.style.imageRendering = Math.max(...photo.size) <= 64 ? "pixelated" : "auto";
    this.node.style.maxWidth = `${Math.max(shown, 200)}px`;
    this.photo = photo;
    this.label.textContent = photo.name;
  }

  /** Take over a map, or a photo with a marked cell, as Python sent it. */
  take(side, title) {
    this.map = side;
    this.levels = side.values ? words(side.values) : null;
    const does = this.pair ? " Enter shows what matches this point in the other image." : "";
    const about = this.levels ? `map over the image, ${title}` : "the image with the marked point";
    this.canvas.setAttribute("aria-label", `${this.photo.name}: ${about}. Arrow keys read values.${does}`);
    this.marks.replaceChildren();
    if (side.cell) {
      const [left, top, width, height] = side.cell.map((part) => `${100 * part}%`);
      this.marks.append(make("div", {class: "gamlens-cell", style: `left:${left};top:${top};width:${width};height:${height}`}));
    }
    if (side.spot) this.mark("gamlens-spot", ...side.spot);
    this.bar.hidden = !this.levels;
    if (this.levels) {
      const all = bytes(side.colours);
      const stops = Array.from({length: 18}, (_, at) => `rgb(${all.slice(45 * at, 45 * at + 3).join(",")})`);
      this.ramp.style.background = `linear-gradient(90deg,${stops.join(",")})`;
      const texts = [side.bar.low, side.bar.middle, side.bar.high];
      this.ends.forEach((end, at) => { end.textContent = texts[at]; });
      this.small.textContent = side.bar.caption;
      this.bar.setAttribute("aria-label", `Colour bar from ${side.bar.low} to ${side.bar.high}; ${side.bar.caption}`);
    }
    this.point(...(this.cursor ?? []));
  }

  mark(kind, x, y) {
    this.marks.append(make("div", {class: kind, style: `left:${100 * x}%;top:${100 * y}%`}));
  }

  draw(opacity, threshold) {
    if (!this.pixels || !this.map) return;
    const found = draw(this.canvas, this.pixels, this.map, this.levels, opacity, threshold);
    if (!found) this.region.textContent = "";
    else if (!found.share) this.region.textContent = "no pixel reaches the threshold";
    else {
      const scale = this.photo.original[0] / this.photo.size[0];
      const [x0, y0, x1, y1] = found.box.map((number) => Math.round(number * scale));
      this.region.textContent = `${(100 * found.share).toFixed(1)} % of the image, box (${x0}, ${y0}) to (${x1}, ${y1})`;
    }
  }

  /** Show the value at a place, given as fractions of width and height; without a place, none. */
  point(x, y, byKey = false) {
    this.marks.querySelector(".gamlens-cross")?.remove();
    this.cursor = x === undefined ? null : [x, y];
    this.needle.hidden = this.cursor === null || !this.levels;
    if (this.cursor === null || !this.levels) {
      this.value.textContent = "";
      return;
    }
    const {width, height} = this.canvas, [across, down] = this.photo.original;
    const level = this.levels[Math.floor(y * height) * width + Math.floor(x * width)] / WHOLE;
    const value = this.map.low + level * (this.map.high - this.map.low);
    const worth = this.map.worth ? `, ${(value * this.map.worth).toPrecision(2)} of the ${this.map.unit}` : "";
    this.value.textContent = `Pixel (${Math.floor(x * across)}, ${Math.floor(y * down)}): ${value.toFixed(3)}${worth}`;
    this.needle.style.left = `${100 * level}%`;
    if (byKey) this.mark("gamlens-cross", x, y);
  }
}

function render({model, el}) {
  const id = `gamlens-${Date.now().toString(36)}-${made++}`;
  const menus = model.get("menus"), listeners = [];
  const on = (name, act) => { model.on(`change:${name}`, act); listeners.push([`change:${name}`, act]); };
  const ask = (changes) => {
    const last = model.get("asked");
    model.set("asked", {...last, point: null, ...changes, number: last.number + 1});
    model.save_changes();
  };
  const choose = (name, value) => { model.set(name, value); model.save_changes(); };
  const labelled = (text, control, key, shown) => {
    control.id = `${id}-${key}`;
    return make("label", {for: control.id}, make("span", {}, text), ...(shown ? [shown] : []), control);
  };
  const list = (entries) => make("select", {}, ...entries.map(([value, text]) => make("option", {value}, text)));
  const slider = (key, most, step) => make("input", {type: "range", min: key === "n" ? "1" : "0", max: `${most}`, step: `${step}`});

  const figures = (menus.pair ? ["x", "y"] : ["x"]).map((name) => new Figure(name, menus.pair, (side, x, y) => {
    if (menus.pair && !menus.fixed) ask({point: {side, x, y}});
  }));
  const row = list(menus.rows.map((text, at) => [`${at}`, text]));
  const method = list(menus.methods.map((entry) => [entry.name, entry.title]));
  const n = slider("n", 1, 1), nShown = make("output");
  const refine = make("input", {type: "checkbox"});
  const opacity = slider("opacity", 1, 0.01), opacityShown = make("output");
  const threshold = slider("threshold", 1, 0.01), thresholdShown = make("output");
  const back = make("button", {type: "button", hidden: true}, "Back to the maps");
  const title = make("strong"), caption = make("span"), failed = make("p", {class: "gamlens-failed", role: "alert", hidden: true});
  const status = make("p", {class: "gamlens-under", role: "status"});
  const rowLabel = labelled(menus.pair ? "Pair" : "Image and class", row, "row");
  rowLabel.hidden = menus.rows.length < 2;
  const refineLabel = labelled("Refine (follow outlines)", refine, "refine");
  refineLabel.className = "gamlens-check";
  refineLabel.prepend(refine);
  const controls = make("div", {class: "gamlens-controls", role: "group", "aria-label": "Controls"},
    rowLabel, labelled("Method", method, "method"), labelled("Number of layers (n)", n, "n", nShown),
    labelled("Opacity", opacity, "opacity", opacityShown), labelled("Threshold", threshold, "threshold", thresholdShown),
    refineLabel, back, status);
  const root = make("div", {class: `gamlens-view${menus.pair ? " gamlens-pair" : ""}`, role: "group"},
    make("p", {class: "gamlens-head"}, title, caption), failed,
    make("div", {class: "gamlens-body"}, make("div", {class: "gamlens-figures"}, ...figures.map((one) => one.node)), controls));
  el.replaceChildren(root);

  const entry = () => menus.methods.find((one) => one.name === model.get("asked").method) ?? menus.methods[0];
  const drawAll = () => {
    const [strength, least] = [model.get("opacity"), model.get("threshold")];
    opacity.value = strength;
    threshold.value = least;
    opacityShown.textContent = strength.toFixed(2);
    thresholdShown.textContent = least > 0 ? least.toFixed(2) : "off";
    figures.forEach((one) => one.draw(strength, least));
  };
  let waiting = 0;
  const redraw = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; drawAll(); }); };
  const settle = () => {
    const asked = model.get("asked"), one = entry();
    row.value = `${asked.row}`;
    method.value = asked.method;
    n.max = `${Math.max(one.most, 1)}`;
    n.value = `${asked.n}`;
    nShown.textContent = `${asked.n} of ${one.most}`;
    refine.checked = asked.refine;
    method.disabled = menus.fixed;
    n.disabled = menus.fixed || one.most < 2;
    refine.disabled = menus.fixed || !(one.refines || asked.refine);
    back.hidden = !asked.point;
    const answered = [model.get("shown").number, model.get("failed").number ?? -1];
    const busy = !answered.includes(asked.number);
    root.classList.toggle("gamlens-busy", busy);
    root.setAttribute("aria-busy", `${busy}`);
    const hints = {
      fixed: "This result was loaded, selected or joined: method, n and refinement stay as they are.",
      pair: "Click a point of one image to see what matches it in the other.",
    };
    const more = menus.more_rows ? ` The menu lists the first ${menus.rows.length} rows.` : "";
    const hint = menus.fixed ? hints.fixed : menus.pair ? hints.pair : "";
    status.textContent = busy ? "Waiting for the kernel…" : (model.get("shown").note || hint) + more;
    failed.hidden = !model.get("failed").text;
    failed.textContent = model.get("failed").text ?? "";
  };
  const show = async () => {
    const shown = model.get("shown"), photos = model.get("photos");
    await Promise.all(figures.map((one, at) => one.load(photos[at])));
    if (model.get("shown").number !== shown.number) return;  // a later answer has come meanwhile
    title.textContent = shown.title;
    caption.textContent = shown.caption;
    root.setAttribute("aria-label", `gamlens: ${shown.title}`);
    figures.forEach((one, at) => one.take(shown.sides[at], shown.title));
    settle();
    drawAll();
    root.dataset.shown = shown.number;
  };

  row.addEventListener("change", () => ask({row: Number(row.value)}));
  method.addEventListener("change", () => {
    const before = entry(), after = menus.methods.find((one) => one.name === method.value);
    const asked = model.get("asked");
    const depth = before.kind === after.kind ? Math.min(asked.n, after.most) : after.usual;
    ask({method: after.name, n: depth, refine: asked.refine && after.refines});
  });
  n.addEventListener("input", () => ask({n: Number(n.value)}));
  refine.addEventListener("change", () => ask({refine: refine.checked}));
  opacity.addEventListener("input", () => choose("opacity", Number(opacity.value)));
  threshold.addEventListener("input", () => choose("threshold", Number(threshold.value)));
  back.addEventListener("click", () => ask({}));
  on("shown", show);
  on("asked", settle);
  on("failed", settle);
  on("opacity", redraw);
  on("threshold", redraw);
  show();
  return () => {
    cancelAnimationFrame(waiting);
    listeners.forEach(([name, act]) => model.off(name, act));
    model.send({closed: true});
  };
}

export default {render};
