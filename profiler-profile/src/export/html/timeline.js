// Strips of time, a row for each CPU, process or thread: when each was sampled, and a range to choose.

const STRIP = 18;
const AXIS = 18;
const LABEL = 170;
// So many rows are drawn; the others are one.
const STRIPS = 48;
// In pixels: less is a click.
const DRAG = 4;

class Timeline {
  // `range` is what is shown, and `before` what that is compared with. `choose` gets a range of slices, or null, and `pick` the row that was clicked.
  constructor({ strips, canvas, cursor }, sliceSeconds, { choose, pick }) {
    Object.assign(this, { strips, canvas, said: cursor, sliceSeconds, choose, pick });
    this.context = canvas.getContext("2d");
    this.kept = { first: 0, end: 1 };
    this.range = null;
    this.before = null;
    this.drag = null;
    this.at = null;
    this.row = 0;
    this.waits = false;
    this.clear();
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => this.stop());
    strips.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(strips);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // Forgets what it has: other strips come.
  clear() {
    this.known = new Map();
    this.since = 0;
    this.rows = [];
  }

  // Takes the samples from a slice on, of which some may have come late.
  take({ first, end, since, strips }) {
    this.kept = { first, end };
    for (const [id, row] of this.known) {
      for (const slice of row.counts.keys()) if (slice < first || slice >= since) row.counts.delete(slice);
      if (row.counts.size === 0) this.known.delete(id);
    }
    for (const [id, process, name, slices, counts] of strips) {
      if (!this.known.has(id)) this.known.set(id, { id, process, name, counts: new Map() });
      const row = this.known.get(id);
      // A program that a process has executed since has another name.
      Object.assign(row, { process, name });
      slices.forEach((slice, at) => row.counts.set(slice, counts[at]));
    }
    this.since = end;
    this.order();
    this.draw();
  }

  order() {
    const chosen = this.rows[this.row];
    const rows = [...this.known.values()];
    for (const row of rows) row.total = [...row.counts.values()].reduce((sum, it) => sum + it, 0);
    const isCpu = (row) => row.name === "";
    rows.sort((a, b) => (isCpu(a) ? a.id - b.id : b.total - a.total || a.id - b.id));
    this.rows = rows.slice(0, STRIPS);
    const others = rows.slice(STRIPS);
    if (others.length > 0) {
      const counts = new Map();
      for (const row of others) for (const [at, count] of row.counts) counts.set(at, (counts.get(at) || 0) + count);
      this.rows.push({ id: null, process: null, name: `${grouped(others.length)} others`, counts });
    }
    // Whoever is at a row stays there, wherever that has gone.
    const again = chosen ? this.rows.findIndex((it) => it.id === chosen.id) : -1;
    this.row = again >= 0 ? again : Math.min(this.row, Math.max(this.rows.length - 1, 0));
  }

  title(row) {
    if (row.id === null) return row.name;
    return row.name === "" ? `CPU ${row.id}` : `${row.name} (${row.id})`;
  }

  // Where a slice begins, in pixels, and the slice at a place.
  x(slice) {
    const { first, end } = this.kept;
    return LABEL + ((slice - first) / Math.max(end - first, 1)) * Math.max(this.width - LABEL, 1);
  }

  slice(x) {
    const { first, end } = this.kept;
    const share = (x - LABEL) / Math.max(this.width - LABEL, 1);
    return Math.min(Math.max(first + Math.floor(share * (end - first)), first), end - 1);
  }

  place(event) {
    const at = this.canvas.getBoundingClientRect();
    return { x: event.clientX - at.left, y: event.clientY - at.top };
  }

  press(event) {
    if (event.button !== 0) return;
    const { x, y } = this.place(event);
    this.drag = { from: x, to: x, y };
    this.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    const { x, y } = this.place(event);
    const row = this.rows[Math.floor((y - AXIS) / STRIP)];
    this.canvas.title = row && !this.drag ? this.title(row) : "";
    if (!this.drag) return;
    this.drag.to = x;
    this.draw();
  }

  release(event) {
    if (!this.drag) return;
    const { from, to, y } = this.drag;
    this.drag = null;
    this.canvas.releasePointerCapture(event.pointerId);
    if (Math.abs(to - from) >= DRAG) {
      const [low, high] = [Math.min(from, to), Math.max(from, to)];
      this.choose({ first: this.slice(low), end: this.slice(high) + 1 });
    } else {
      const row = Math.floor((y - AXIS) / STRIP);
      if (this.rows[row] && this.rows[row].id !== null) {
        this.row = row;
        this.pick(this.rows[row]);
      }
    }
    this.draw();
  }

  stop() {
    this.drag = null;
    this.draw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 };
    const rows = { ArrowUp: -1, ArrowDown: 1 };
    if (Object.hasOwn(steps, event.key)) this.step(steps[event.key], event.shiftKey);
    else if (Object.hasOwn(rows, event.key)) this.row = Math.min(Math.max(this.row + rows[event.key], 0), Math.max(this.rows.length - 1, 0));
    else if (event.key === "Enter") this.enter();
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
    event.stopPropagation();
    this.tell();
    this.draw();
  }

  // From slice to slice; `extends_` leaves the other end of the range where it is.
  step(by, isRange) {
    const { first, end } = this.kept;
    const from = this.at === null ? end - 1 : this.at;
    this.at = Math.min(Math.max(from + by, first), end - 1);
    if (!isRange) this.anchor = null;
    else if (this.anchor === null || this.anchor === undefined) this.anchor = from;
  }

  // The slices between the two ends that the keys have set.
  get marked() {
    if (this.at === null || this.anchor === null || this.anchor === undefined) return null;
    return { first: Math.min(this.at, this.anchor), end: Math.max(this.at, this.anchor) + 1 };
  }

  enter() {
    const { marked } = this;
    const row = this.rows[this.row];
    if (marked) this.choose(marked);
    else if (row && row.id !== null) this.pick(row);
    this.anchor = null;
  }

  leave() {
    if (this.marked) this.anchor = null;
    else this.choose(null);
  }

  tell() {
    const row = this.rows[this.row];
    const ago = (slice) => `${((this.kept.end - slice) * this.sliceSeconds).toFixed(1)} s ago`;
    const { marked } = this;
    const when = marked ? `from ${ago(marked.first)} to ${ago(marked.end)}` : this.at === null ? "" : ago(this.at);
    const count = row && this.at !== null ? `${grouped(row.counts.get(this.at) || 0)} samples` : "";
    this.said.textContent = [row ? this.title(row) : "", when, count].filter(Boolean).join(", ");
    const top = AXIS + this.row * STRIP;
    if (top < this.strips.scrollTop + AXIS) this.strips.scrollTop = top - AXIS;
    if (top + STRIP > this.strips.scrollTop + this.strips.clientHeight) this.strips.scrollTop = top + STRIP - this.strips.clientHeight;
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
    const { context, canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    this.width = this.strips.clientWidth;
    const height = AXIS + Math.max(this.rows.length, 1) * STRIP;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${height}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    context.font = `11px ${colour("--sans")}`;
    context.textBaseline = "middle";
    this.paintAxis(height, colour);
    const most = this.rows.reduce((most, row) => (row.id === null ? most : [...row.counts.values()].reduce((a, b) => Math.max(a, b), most)), 1);
    const narrow = Math.max(this.x(this.kept.first + 1) - LABEL - 0.5, 1);
    this.rows.forEach((row, at) => {
      const top = AXIS + at * STRIP;
      const isAt = at === this.row && document.activeElement === this.strips;
      context.fillStyle = isAt ? colour("--accent") : colour("--text");
      context.fillText(fit(context, this.title(row), LABEL - 12), 0, top + STRIP / 2);
      context.fillStyle = colour("--ground");
      context.fillRect(LABEL, top + 1, this.width - LABEL, STRIP - 2);
      context.fillStyle = colour("--user");
      for (const [slice, count] of row.counts) {
        const tall = Math.max((Math.min(count / most, 1)) * (STRIP - 3), 1);
        context.fillRect(this.x(slice), top + STRIP - 1 - tall, narrow, tall);
      }
    });
    this.paintRange(height, colour);
  }

  // Round times before now.
  paintAxis(height, colour) {
    const { context } = this;
    const seconds = (this.kept.end - this.kept.first) * this.sliceSeconds;
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300];
    const step = steps.find((it) => seconds / it <= Math.max((this.width - LABEL) / 90, 1)) || 300;
    for (let ago = step; ago < seconds; ago += step) {
      const x = this.x(this.kept.end - ago / this.sliceSeconds);
      context.fillStyle = colour("--line");
      context.fillRect(x, AXIS - 4, 1, height - AXIS + 4);
      context.fillStyle = colour("--quiet");
      const text = ago % 60 === 0 ? `−${ago / 60} min` : `−${ago} s`;
      context.fillText(text, x + 3, AXIS / 2 - 1);
    }
  }

  paintRange(height, colour) {
    const { context, drag, marked } = this;
    const chosen = drag && Math.abs(drag.to - drag.from) >= DRAG
      ? { first: this.slice(Math.min(drag.from, drag.to)), end: this.slice(Math.max(drag.from, drag.to)) + 1 }
      : marked;
    const { before } = this;
    const range = chosen || this.range;
    const ranges = [before && { ...before, name: "before" }, range && { ...range, name: before ? "after" : "" }];
    for (const { first, end, name } of ranges.filter(Boolean)) {
      const [from, to] = [Math.max(this.x(first), LABEL), Math.min(this.x(end), this.width)];
      if (to <= from) continue;
      context.fillStyle = colour("--focus");
      context.globalAlpha = 0.16;
      context.fillRect(from, 0, Math.max(to - from, 1), height);
      context.globalAlpha = 1;
      context.fillRect(from, 0, 1, height);
      context.fillRect(Math.max(to - 1, from), 0, 1, height);
      context.fillStyle = colour("--surface");
      context.fillRect(from + 1, 0, name ? context.measureText(name).width + 6 : 0, AXIS - 2);
      context.fillStyle = colour("--focus");
      context.fillText(name, from + 4, AXIS / 2 - 1);
    }
    if (this.at !== null && document.activeElement === this.strips) {
      context.fillStyle = colour("--text");
      context.fillRect(this.x(this.at), 0, 1, height);
    }
  }
}

// As much of a text as there is room for.
function fit(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const characters = [...text];
  while (characters.length > 0 && context.measureText(`${characters.join("")}…`).width > room) characters.pop();
  return `${characters.join("")}…`;
}
