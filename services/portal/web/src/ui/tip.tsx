// The note beside the pointer.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

const shown = signal<{ x: number; y: number; content: ComponentChildren } | null>(null);

export function showTip(x: number, y: number, content: ComponentChildren): void {
  shown.value = { x, y, content };
}

export function hideTip(): void {
  if (shown.peek()) shown.value = null;
}

addEventListener("hashchange", hideTip);
addEventListener("scroll", hideTip, { passive: true, capture: true });

export function Tip() {
  const ref = useRef<HTMLDivElement>(null);
  const at = shown.value;
  useLayoutEffect(() => {
    const tip = ref.current;
    if (!tip || !at) return;
    const { offsetWidth: width, offsetHeight: height } = tip;
    const left = at.x + 14 + width > innerWidth - 8 ? at.x - width - 12 : at.x + 14;
    const top = at.y + 16 + height > innerHeight - 8 ? at.y - height - 12 : at.y + 16;
    tip.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
  });
  return at ? <div ref={ref} class="tip">{at.content}</div> : null;
}
