// The flame graph on its canvas.

const ROW = 20;
const EDGE = 10;
// In pixels: what is narrower is drawn as one with its neighbours.
const NARROW = 0.7;
const TEXT_FROM = 24;
const SHADES = 16;

// The same name always has the same shade. FNV-1a.
function shadeOf(name) {
  let hash = 0x811c9dc5;
  for (let at = 0; at < name.length; at++) hash = Math.imul(hash ^ name.charCodeAt(at), 0x01000193);
  return ((hash ^ (hash >>> 15)) >>> 0) % SHADES;
}

// The colours of each kind, by shade.
function palette(isDark) {
  const shades = (of) => Array.from({ length: SHADES }, (_, it) => of(it / (SHADES - 1), ((it * 7) % SHADES) / SHADES));
  const hsl = (hue, saturation, lightness) => `hsl(${hue.toFixed(1)} ${saturation}% ${lightness.toFixed(1)}%)`;
  const kind = (from, to, saturation, light, dark) =>
    shades((a, b) => hsl(from + (to - from) * a, isDark ? saturation - 30 : saturation, (isDark ? dark : light) + 6 * b));
  const user = kind(12, 45, 88, 66, 31);
  const inlined = kind(84, 118, 62, 66, 27);
  const kernel = kind(206, 228, 78, 73, 36);
  const interpreted = kind(268, 296, 60, 74, 36);
  const quiet = shades(() => (isDark ? "#3a3d43" : "#dcd8cf"));
  return [quiet, quiet, user, inlined, kernel, kernel, interpreted];
}

// Red for what has grown by so large a share of itself, from -1 to 1, and blue for what has shrunk; quiet for null. The
// SVG has the same.
function changeColour(growth, isDark) {
  if (growth === null) return isDark ? "#3a3d43" : "#e0dfdc";
  const size = Math.sqrt(Math.min(Math.abs(growth), 1));
  const lightness = isDark ? 26 + 18 * size : 86 - 28 * size;
  return `hsl(${growth > 0 ? 8 : 213} ${(isDark ? 20 : 35) + 50 * size}% ${lightness}%)`;
}

class FlameGraph {
  constructor(profile, { canvas, scroller, spacer }) {
    Object.assign(this, { profile, canvas, scroller, spacer });
    this.context = canvas.getContext("2d");
    this.take(profile);
    this.growsUp = true;
    this.isMarked = null;
    this.hovered = null;
    this.cursor = null;
    this.waits = false;
    this.readTheme();
  }

  // Takes later samples.
  take(profile) {
    this.profile = profile;
    this.shades = Uint8Array.from(profile.names, shadeOf);
    this.widths = new Map();
  }

  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    this.isDark = isDark;
    this.colours = palette(isDark);
    this.theme = {
      text: value("--frame-text"),
      mark: value("--mark"),
      markText: value("--mark-text"),
      outline: value("--text"),
      crumbs: value("--crumbs"),
    };
    this.font = `12px ${value("--sans")}`;
  }

  show(tree, zoomed) {
    this.tree = tree;
    this.zoom(zoomed || tree.root);
  }

  // Shows another tree of the same stacks: what is in view stays, and so does the cursor.
  renew(tree, zoomed, cursor) {
    const fromRoot = () => (this.growsUp ? this.full - this.height - this.scroller.scrollTop : this.scroller.scrollTop);
    const away = fromRoot();
    Object.assign(this, { tree, zoomed, hovered: null });
    this.lay();
    this.scroller.scrollTop = this.growsUp ? this.full - this.height - away : away;
    this.cursor = (cursor && this.rows.flat().find((box) => box.node === cursor)) || null;
    this.draw();
  }

  zoom(node) {
    this.zoomed = node;
    this.cursor = null;
    this.hovered = null;
    this.lay();
    // The root's end is in view, or at least the frame with its next callers.
    const away = Math.max(this.depth * ROW - this.height / 3, 0);
    this.scroller.scrollTop = this.growsUp ? this.full - this.height - away : away;
    this.draw();
  }

  resize() {
    this.lay();
    this.draw();
  }

  // Where each frame lies. Rows are counted from the root.
  lay() {
    this.width = this.scroller.clientWidth;
    this.height = this.scroller.clientHeight;
    this.rows = [];
    const room = Math.max(this.width - 2 * EDGE, 1);
    const path = [];
    for (let it = this.zoomed.caller; it; it = it.caller) path.unshift(it);
    path.forEach((node, row) => this.put(row, { node, x: EDGE, width: room, isCaller: true }));
    this.depth = path.length;
    const scale = room / Math.max(this.zoomed.total, 1);
    const waiting = [[this.zoomed, EDGE, path.length]];
    while (waiting.length > 0) {
      const [node, x, row] = waiting.pop();
      this.put(row, { node, x, width: node.total * scale, isCaller: false });
      const wide = [];
      let at = x;
      let crumbs = 0;
      let crumbSamples = 0;
      const sweep = () => {
        if (crumbs * scale >= NARROW / 2 || crumbSamples > 1) {
          const width = Math.max(crumbs * scale, NARROW);
          this.put(row + 1, { node: null, x: at - crumbs * scale, width, samples: crumbs, frames: crumbSamples });
        }
        crumbs = 0;
        crumbSamples = 0;
      };
      for (const callee of this.tree.expand(node)) {
        if (callee.total * scale >= NARROW) {
          sweep();
          wide.push([callee, at, row + 1]);
        } else {
          crumbs += callee.total;
          crumbSamples += 1;
        }
        at += callee.total * scale;
      }
      sweep();
      waiting.push(...wide.reverse());
    }
    for (const row of this.rows) row.sort((a, b) => a.x - b.x);
    const needed = this.rows.length * ROW + 2 * EDGE;
    this.full = Math.max(needed, this.height);
    this.spacer.style.height = `${Math.max(needed - this.height, 0)}px`;
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this.canvas.style, { width: `${this.width}px`, height: `${this.height}px` });
    const [wide, tall] = [this.width, this.height].map((it) => Math.round(it * ratio));
    // To set the size makes a new canvas, also if it is the same.
    if (this.canvas.width !== wide || this.canvas.height !== tall) Object.assign(this.canvas, { width: wide, height: tall });
  }

  put(row, box) {
    while (this.rows.length <= row) this.rows.push([]);
    this.rows[row].push(box);
    box.row = row;
  }

  top(row) {
    const y = this.growsUp ? this.full - EDGE - (row + 1) * ROW : EDGE + row * ROW;
    return y - this.scroller.scrollTop;
  }

  // Draws with the next picture of the screen.
  draw() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.paint();
    });
  }

  paint() {
    const { context, profile, theme, width, height } = this;
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = this.font;
    context.textBaseline = "middle";
    this.rows.forEach((row, at) => {
      const y = this.top(at);
      if (y + ROW < 0 || y > height) return;
      for (const box of row) {
        const shown = Math.max(box.width - (box.width > 3 ? 1 : 0.2), 0.5);
        if (!box.node) {
          context.globalAlpha = this.isMarked ? 0.4 : 1;
          context.fillStyle = theme.crumbs;
          context.fillRect(box.x, y, shown, ROW - 1);
          continue;
        }
        const of = box.node.function;
        const isMarked = this.isMarked && this.isMarked(of);
        context.globalAlpha = this.isMarked && !isMarked ? 0.38 : box.isCaller ? 0.55 : 1;
        const change = profile.change(box.node.before, box.node.total);
        context.fillStyle = isMarked ? theme.mark : this.colour(box.node, change);
        if (box.width > 5) {
          context.beginPath();
          context.roundRect(box.x, y, shown, ROW - 1, 2.5);
          context.fill();
        } else {
          context.fillRect(box.x, y, shown, ROW - 1);
        }
        if (box.width >= TEXT_FROM) {
          // Whoever can't tell the colours apart reads it.
          const grown = change && !change.isNoise ? `${growth(change)} ` : "";
          const text = this.fitting(grown + profile.names[of], shown - 10);
          if (this.isMarked && !isMarked) context.globalAlpha = 0.6;
          context.fillStyle = isMarked ? theme.markText : theme.text;
          context.fillText(text, box.x + 5, y + ROW / 2 + 0.5);
        }
      }
    });
    context.globalAlpha = 1;
    for (const box of [this.hovered, this.cursor]) if (box) this.outline(box);
  }

  colour(node, change) {
    if (change) return changeColour(change.isNoise ? null : change.relative, this.isDark);
    return this.colours[this.profile.kinds[node.function]][this.shades[node.function]];
  }

  outline(box) {
    const { context, theme } = this;
    context.strokeStyle = theme.outline;
    context.lineWidth = box === this.cursor ? 2 : 1;
    context.beginPath();
    context.roundRect(box.x + 0.5, this.top(box.row) + 0.5, Math.max(box.width - 2, 1), ROW - 2, 2.5);
    context.stroke();
  }

  measure(text) {
    if (!this.widths.has(text)) this.widths.set(text, this.context.measureText(text).width);
    return this.widths.get(text);
  }

  // As much of a name as there is room for.
  fitting(name, room) {
    if (this.measure(name) <= room) return name;
    const characters = [...name];
    let [low, high] = [0, characters.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.context.measureText(characters.slice(0, middle).join("") + "…").width <= room) low = middle;
      else high = middle - 1;
    }
    return low > 0 ? characters.slice(0, low).join("") + "…" : "";
  }

  // The box at a place of the canvas.
  at(x, y) {
    const down = y + this.scroller.scrollTop - EDGE;
    const row = Math.floor((this.growsUp ? this.full - 2 * EDGE - down : down) / ROW);
    const boxes = this.rows[row] || [];
    let [low, high] = [0, boxes.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (boxes[middle].x <= x) low = middle + 1;
      else high = middle;
    }
    const box = boxes[low - 1];
    return box && x < box.x + Math.max(box.width, 1) ? box : null;
  }

  // The box beside the one that the keys are at: "caller", "callee", "before" or "after".
  step(where) {
    const from = this.cursor;
    if (!from) {
      this.cursor = this.rows.flat().find((box) => box.node === this.zoomed) || null;
    } else if (where === "caller") {
      this.cursor = (this.rows[from.row - 1] || []).find((box) => box.node === from.node.caller) || from;
    } else if (where === "callee") {
      const callees = (this.rows[from.row + 1] || []).filter((box) => box.node && box.node.caller === from.node);
      callees.sort((a, b) => b.width - a.width);
      this.cursor = callees[0] || from;
    } else {
      const frames = this.rows[from.row].filter((box) => box.node);
      this.cursor = frames[frames.indexOf(from) + (where === "after" ? 1 : -1)] || from;
    }
    this.reveal();
    this.draw();
    return this.cursor;
  }

  reveal() {
    if (!this.cursor) return;
    const y = this.top(this.cursor.row);
    if (y < 0) this.scroller.scrollTop += y - EDGE;
    if (y + ROW > this.height) this.scroller.scrollTop += y + ROW - this.height + EDGE;
  }
}
