// Icons of 16 pixels, in the colour of the text beside them.
const PATHS = {
  good: "M3.5 8.5l3 3 6-7",
  bad: "M4 4l8 8M12 4l-8 8",
  warn: "M8 4v5M8 11.6v.6",
  busy: "M8 2.5a5.5 5.5 0 1 1-5.2 3.7",
  idle: "M8 8v.01",
  pause: "M6 4v8M10 4v8",
  stop: "M4.5 4.5h7v7h-7z",
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
  down: "M8 2.5v8M4.5 7.5L8 11l3.5-3.5M3 13.5h10",
  retry: "M12.9 6.2A5.3 5.3 0 1 0 13.3 8.6M13 2.7v3.6H9.4",
  left: "M9.5 4.5L6 8l3.5 3.5",
  right: "M6.5 4.5L10 8l-3.5 3.5",
  file: "M4 2.5h5l3 3v8H4zM9 2.5v3h3",
  folder: "M2.5 4.5h4l1.5 2h5.5v6h-11z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg
      viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.7"
      stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Mark() {
  return (
    <svg viewBox="0 0 32 32" fill="none" stroke="currentColor" stroke-linecap="round" aria-hidden="true">
      <circle cx="16" cy="16" r="13" stroke-width="4" />
      <path d="M16 16V7M16 16l7.8 4.5M16 16l-7.8 4.5" stroke-width="3" />
    </svg>
  );
}
