// What this portal is.
import { computed, signal } from "@preact/signals";
import type { Info } from "./api";
import { report } from "./report";

export const info = signal<Info | null>(null);

/** Whether the page may change anything. */
export const mayAct = computed(() => !report && info.value !== null && !info.value.read_only);
