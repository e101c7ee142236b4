// What the scripts of the pages share with one another, for `tsc` (make check).

/** The view of a run: positions are seconds on the axis of time, and instants on the axis of events. */
interface State {
  /** First and last position in view; null for the whole run. */
  a: number | null;
  b: number | null;
  /** Least and greatest byte in view, where a page zooms into heights; null for all. */
  lo: number | null;
  hi: number | null;
  /** The chosen instant. */
  at: number | null;
  /** Position of the slider's thumb while a hand moves it. */
  scrubbed: number | null;
  /** What the inspector shows: kind and number, as `b17`; "" for nothing. */
  sel: string;
  axis: "time" | "events";
}

/** "view" at every move; "view begins" and "view rests" at the first of several moves and after the last; "grows"
 *  when a live run has another version. */
type Topic = "view" | "view begins" | "view rests" | "instant" | "scrub" | "selection" | "columns" | "grows";
type Edges = [number, number] | [null, null];

interface Store {
  state: State;
  /** Subscribe to one topic or several; returns the function that ends it. */
  on(topics: Topic | Topic[], listener: (detail?: any) => void): () => void;
  tell(topic: Topic, detail?: any): void;
  /** Take zoom, instant and selection from the address. */
  read(axis: State["axis"]): void;
  /** Write parameters into the address; null or "" removes one. */
  remember(changes: Record<string, string | number | null | undefined>): void;
  /** First and last position in view as the server counts them: nanoseconds or instants. */
  edges(): Edges;
  look(changes: Partial<Pick<State, "a" | "b" | "lo" | "hi">>): void;
  /** The hand has let go, so no other move is awaited. */
  rest(): void;
  /** Choose an instant, whose position is x where it is known; returns whether it is another one. */
  choose(at: number, x?: number | null): boolean;
  place(at: number, x: number): void;
  positionOf(at: number | null): number | null;
  scrub(x: number | null): void;
  select(what: string): void;
}

interface Window {
  vramscope: { store?: Store; [name: string]: any };
  dash_clientside: any;
  dashAgGridFunctions: any;
  dashAgGridComponentFunctions: any;
  Plotly: any;
  _dashPlotlyJSURL?: string;
  dash_ag_grid: any;
}

declare const dash_clientside: any;
declare const Plotly: any;
declare const React: any;
declare const dash_ag_grid: any;

// Listeners of documents get events whose target is an element of a page.
interface EventTarget {
  [name: string]: any;
}
interface Node {
  contains(other: EventTarget | null): boolean;
  [name: string]: any;
}
interface Element {
  [name: string]: any;
}
