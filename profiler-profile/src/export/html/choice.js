// What is chosen on a page, by names and ids: so it holds for other samples of the same programs, and in a link.

class Choice {
  constructor(page) {
    const { profile, filter, graph } = page;
    const { process, thread } = filter;
    const keys = (node) => pathTo(node).map((it) => profile.key(it));
    const of = thread === null ? process : profile.threads[thread].process;
    this.source = filter.source;
    this.module = filter.module;
    this.process = of === null ? null : profile.processes[of];
    this.thread = thread === null ? null : profile.threads[thread];
    this.isProcessChosen = process !== null;
    this.isBottomUp = page.isBottomUp;
    this.growsUp = graph.growsUp;
    this.search = page.parts.search.value;
    this.selected = page.selected === null ? null : profile.rows[page.selected];
    // Frames that had no samples for a moment are still what was zoomed to.
    this.zoom = page.sought || keys(graph.zoomed);
    this.back = page.back.map(keys);
    this.cursor = graph.cursor && graph.cursor.node ? keys(graph.cursor.node) : null;
  }

  // Has a page show the same of the samples that it has.
  apply(page) {
    const { profile, filter, parts, table } = page;
    // The sources of a comparison are not those of the run.
    const { change } = profile.file;
    const isSource = this.source !== null && (change || this.source < profile.sources.length);
    const first = !change && profile.sources.length > 1 ? 0 : null;
    filter.source = isSource ? this.source : first;
    filter.module = this.module;
    filter.process = this.process && this.isProcessChosen ? profile.rowOfProcess(this.process) : null;
    filter.thread = this.thread && profile.rowOfThread(this.thread, this.process);
    page.selected = this.selected && profile.rowOfFunction(this.selected);
    table.selected = page.selected;
    page.isBottomUp = this.isBottomUp;
    page.graph.growsUp = this.growsUp;
    page.pressOrder();
    parts.search.value = this.search;
    page.choices();
    page.count();
    const { tree } = page;
    const known = (keys) => {
      const path = keys.map((key) => profile.find(key));
      const end = path.indexOf(undefined);
      return end < 0 ? path : path.slice(0, end);
    };
    const zoomed = follow(tree, known(this.zoom));
    page.sought = pathTo(zoomed).length < this.zoom.length ? this.zoom : null;
    page.back = this.back.map((keys) => follow(tree, known(keys)));
    page.graph.renew(tree, zoomed, this.cursor && follow(tree, known(this.cursor)));
    page.describeZoom();
    page.find();
  }
}
