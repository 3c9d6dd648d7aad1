// Why a request has no answer.

/** An answer other than the one that was asked for. `status` 0: the server did not answer. */
export class Refused extends Error {
  constructor(readonly status: number, message: string, readonly removed: boolean = false) {
    super(message);
  }
}
