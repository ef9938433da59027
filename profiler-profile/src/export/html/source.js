// The lines of a function, with the samples that were in each.

class SourceView {
  constructor(live, parts) {
    const { lines, "lines-title": title, "lines-what": what, "lines-files": files } = parts;
    Object.assign(this, { live, dialog: lines, title, what, files, row: null });
    lines.addEventListener("close", () => live.link());
  }

  get isOpen() {
    return this.dialog.open;
  }

  // Of the function that is marked, or else of the one that is zoomed to, or the hottest.
  open() {
    const { live } = this;
    const { page } = live;
    if (!page || !live.shown || !live.run.has_lines) return;
    const { profile, table, graph } = page;
    const zoomed = graph.zoomed === graph.tree.root ? null : profile.rows[profile.rowOf[graph.zoomed.function]];
    const chosen = page.selected === null ? zoomed || table.all[0] : profile.rows[page.selected];
    if (!chosen || chosen.kind === KIND.PROCESS || chosen.kind === KIND.ALL) return;
    this.function = { name: chosen.name, module: chosen.module };
    this.title.textContent = chosen.name;
    this.what.textContent = "Reading …";
    this.files.replaceChildren();
    this.dialog.showModal();
    this.files.focus();
    this.isNew = true;
    live.link();
    this.renew();
  }

  // Asks again: there are later samples.
  async renew() {
    if (!this.isOpen || this.isAsking) return;
    this.isAsking = true;
    const { function: of, live } = this;
    try {
      const query = live.asked();
      query.set("function", of.name);
      query.set("module", of.module);
      // A blank is not a plus in an address.
      const found = JSON.parse(await ask(`lines?${query.toString().replaceAll("+", "%20")}`));
      if (of === this.function) this.show(found);
    } catch (error) {
      this.what.textContent = error.message;
    }
    this.isAsking = false;
    if (of !== this.function) this.renew();
  }

  show({ total, files, unknown }) {
    const facts = [this.function.module].filter(Boolean);
    if (files.length === 0) facts.push("the debug info of this file tells no lines, or there is none");
    else if (unknown > 0) facts.push(`${share(unknown, total)} without a line`);
    this.what.textContent = facts.join(" · ");
    const top = this.files.scrollTop;
    this.files.replaceChildren(...files.map((it) => this.file(it, total)));
    const hottest = this.isNew && this.files.querySelector(".hottest");
    if (hottest) hottest.scrollIntoView({ block: "center" });
    else this.files.scrollTop = top;
    this.isNew = false;
  }

  file({ path, why, changed, lines }, total) {
    const section = element("section");
    const facts = [];
    if (why) facts.push(`No text: ${why}`);
    if (changed) facts.push(`last written to ${new Date(changed * 1000).toLocaleString()}`);
    const head = element("h3", "", path);
    head.append(element("small", why ? "lost" : "", facts.join(" · ")));
    const most = Math.max(...lines.map(([, , it]) => it));
    const table = element("table");
    const names = element("tr");
    for (const it of ["Self", "Total", "Line", ""]) names.append(element("th", "", it));
    table.append(names, ...lines.map((it) => this.line(it, total, most)));
    section.append(head, table);
    return section;
  }

  line([number, own, through, text], total, most) {
    const row = element("tr", through === most && most > 0 ? "hottest" : "");
    const cell = (samples) => {
      const cell = element("td", "number");
      if (samples === 0) return cell;
      const bar = element("i", "bar");
      bar.style.width = `${(100 * samples) / Math.max(most, 1)}%`;
      cell.append(bar, element("b", "", share(samples, total)), element("small", "", grouped(samples)));
      return cell;
    };
    row.append(cell(own), cell(through), element("td", "at", number || "?"), element("td", "code", text === null ? "" : text));
    return row;
  }
}
