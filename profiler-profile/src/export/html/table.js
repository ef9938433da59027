// The table of functions. Only the rows that are in view are made, since there may be a hundred thousand.

const ROW_HEIGHT = 30;

class FunctionTable {
  constructor(profile, { rows, sheet, heads }, choose) {
    Object.assign(this, { profile, rows, sheet, heads, choose });
    this.order = "own";
    this.backwards = false;
    this.selected = null;
    this.all = [];
    rows.addEventListener("scroll", () => this.draw());
    rows.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.select(Number(row.dataset.row));
    });
    rows.addEventListener("keydown", (event) => this.press(event));
    for (const [order, head] of Object.entries(heads)) {
      head.addEventListener("click", () => this.sort(order, this.order === order && !this.backwards));
    }
  }

  // Stays where it is if these are later samples of what was shown.
  show(sums, before, total, isShown, stays) {
    Object.assign(this, { sums, before, total });
    const isFunction = ({ kind }) => kind !== KIND.ALL && kind !== KIND.PROCESS;
    // Of a comparison also what has gone.
    const isThere = ({ row }) => sums.total[row] > 0 || (before && before.total[row] > 0);
    this.all = this.profile.rows.filter((it) => isFunction(it) && isThere(it) && (!isShown || isShown(it)));
    this.sort(this.order, this.backwards, stays);
  }

  sort(order, backwards, stays) {
    Object.assign(this, { order, backwards });
    const [own, total] = ["own", "total"].map((of) => this.keys(of));
    const byName = (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.row - b.row);
    const orders = {
      own: (a, b) => own[b.row] - own[a.row] || total[b.row] - total[a.row] || byName(a, b),
      total: (a, b) => total[b.row] - total[a.row] || own[b.row] - own[a.row] || byName(a, b),
      name: byName,
    };
    this.all.sort(orders[order]);
    if (backwards) this.all.reverse();
    const isUp = (order === "name") !== backwards;
    for (const [name, head] of Object.entries(this.heads)) {
      head.dataset.sorted = name === order ? (isUp ? "up" : "down") : "";
    }
    this.sheet.style.height = `${this.all.length * ROW_HEIGHT}px`;
    if (!stays) this.rows.scrollTop = 0;
    this.draw();
  }

  // What a column is sorted by: samples, or in a comparison what has changed, most first, before what may be noise.
  keys(of) {
    const { sums, before, profile } = this;
    if (!before) return sums[of];
    return sums[of].map((samples, row) => {
      const change = profile.change(before[of][row], samples);
      const size = Math.abs(samples - change.before);
      return change.isNoise ? -1 / (1 + size) : size;
    });
  }

  // Selects a function; the one that is selected is let go.
  select(row) {
    this.selected = row === this.selected ? null : row;
    this.draw();
    this.choose(this.selected);
  }

  press(event) {
    const at = this.all.findIndex((it) => it.row === this.selected);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    const step = steps[event.key];
    if (!step || this.all.length === 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = Math.min(Math.max(at + step, 0), this.all.length - 1);
    if (this.all[next].row !== this.selected) this.select(this.all[next].row);
    const top = next * ROW_HEIGHT;
    if (top < this.rows.scrollTop) this.rows.scrollTop = top;
    const over = top + ROW_HEIGHT - this.rows.clientHeight;
    if (over > this.rows.scrollTop) this.rows.scrollTop = over;
  }

  draw() {
    const first = Math.max(Math.floor(this.rows.scrollTop / ROW_HEIGHT) - 4, 0);
    const last = Math.ceil((this.rows.scrollTop + this.rows.clientHeight) / ROW_HEIGHT) + 4;
    const rows = this.all.slice(first, last).map((it, at) => this.row(it, first + at));
    this.sheet.replaceChildren(...rows);
  }

  row(it, place) {
    const row = element("div", "row");
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(it.row === this.selected));
    row.dataset.row = it.row;
    row.style.top = `${place * ROW_HEIGHT}px`;
    const cell = (sums, before) => {
      const samples = sums[it.row];
      const change = before && this.profile.change(before[it.row], samples);
      const cell = element("span", "number");
      const bar = element("i", "bar");
      const small = change ? (change.isNoise ? "±" : growth(change)) : grouped(samples);
      bar.style.width = `${(100 * samples) / Math.max(this.total, 1)}%`;
      cell.append(bar, element("b", "", share(samples, this.total)), element("small", "", small));
      return cell;
    };
    const name = element("span", it.kind === KIND.KERNEL ? "name kernel" : "name");
    name.title = it.module ? `${it.name}\n${it.module}` : it.name;
    name.append(element("b", "", it.name), element("small", "", baseName(it.module)));
    const before = this.before || {};
    row.append(cell(this.sums.own, before.own), cell(this.sums.total, before.total), name);
    return row;
  }
}
