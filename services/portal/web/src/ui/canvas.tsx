// A canvas as wide as its place: it is drawn again when the place, the theme or what it shows changes.
import { useEffect, useRef, useState } from "preact/hooks";
import { theme } from "./theme";

/** What a component needs to draw on a canvas. */
export function useCanvas() {
  const place = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const resized = new ResizeObserver(() => setWidth(element.clientWidth));
    resized.observe(element);
    return () => resized.disconnect();
  }, []);
  useEffect(() => {
    const element = canvas.current;
    // Frees its pixels now rather than when the browser collects the element.
    return () => void (element && (element.width = 0));
  }, []);
  /** Draws once the place has a width, and again when anything of `shown` changes. */
  const useDrawing = (draw: (canvas: HTMLCanvasElement) => void, shown: unknown[]) =>
    useEffect(() => {
      if (canvas.current && width > 0) draw(canvas.current);
    }, [width, theme.value, ...shown]);
  /** Where a pointer is on the canvas; `null` before there is one. */
  const at = (event: PointerEvent): { x: number; y: number } | null => {
    const box = canvas.current?.getBoundingClientRect();
    return box ? { x: event.clientX - box.left, y: event.clientY - box.top } : null;
  };
  return { place, canvas, width, scale: devicePixelRatio || 1, useDrawing, at };
}

/** Gives a canvas its size in pixels of the screen, and returns what to draw with, in pixels of the page. */
export function sized(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context?.scale(scale, scale);
  return context;
}
