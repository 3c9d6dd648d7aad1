// Every text that the page shows passes here: control sequences of terminals, control characters and those that reverse
// the direction of text are for no element but a terminal, which reads them itself.
import { options, type VNode } from "preact";
import { plain } from "../ansi";

const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/;

function cleaned(value: unknown): unknown {
  if (typeof value === "string") return CONTROL.test(value) ? plain(value) : value;
  return Array.isArray(value) && value.some((one) => typeof one === "string" && CONTROL.test(one)) ? value.map(cleaned) : value;
}

const before = options.vnode;
options.vnode = (vnode: VNode) => {
  if (typeof vnode.type === "string") {
    const props = vnode.props as Record<string, unknown>;
    for (const name of ["children", "title", "aria-label"]) {
      const value = props[name];
      if (value !== undefined) props[name] = cleaned(value);
    }
  }
  before?.(vnode);
};
