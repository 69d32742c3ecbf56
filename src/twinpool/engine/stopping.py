"""Stop strings: found as soon as they are complete, wherever token borders fall.

Knows no server and no scheduler. The engine asks after every token whether the answer is over; the
front uses the same matcher to hold back text that may be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinpool.engine.detokenizer import Detokenizer
from twinpool.engine.tokenizer import Tokenizer
from twinpool.errors import ConfigError
from twinpool.scheduling.plan import Lane


@dataclass(frozen=True, slots=True)
class MatchedText:
    """What a piece of text brought.

    Attributes:
        text: Text that is now certain to be part of the answer.
        stop_string: The stop string that is complete, and that the answer ends before.
    """

    text: str
    stop_string: str | None = None


class StopMatcher:
    """Finds the stop string that is complete first, in text that comes in pieces.

    Of two that are complete at the same character the longer counts, so that the answer does not
    depend on where the pieces are cut.

    Args:
        stop_strings: Strings of one character or more.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        if "" in stop_strings:
            raise ConfigError("a stop string is empty", hint="leave it out")
        self._stops = tuple(stop_strings)
        self._held = ""

    def push(self, text: str, *, armed: bool = True) -> MatchedText:
        """Add text.

        Args:
            text: The next piece, of any length.
            armed: False while the answer may not end yet: then a stop string that is complete in
                this piece is passed over. One that begins here and is complete later counts.

        Returns:
            What is certain now. After a stop string nothing must be added.

        Cost:
            Proportional to the piece and to the stop strings, not to the answer.
        """
        pending = self._held + text
        found = self._first(pending) if armed else None
        if found is not None:
            start, stop = found
            self._held = ""
            return MatchedText(pending[:start], stop)
        cut = len(pending) - self._held_length(pending)
        self._held = pending[cut:]
        return MatchedText(pending[:cut])

    def finish(self) -> str:
        """Return the text that was held back: the answer is over, and no stop string came."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        starts = [(text.find(stop), stop) for stop in self._stops]
        complete = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        if not complete:
            return None
        _, start, stop = min(complete, key=lambda entry: entry[:2])
        return start, stop

    def _held_length(self, text: str) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class StopDetector:
    """Follows the tokens of one request and says when a stop string is complete.

    Args:
        detokenizer: A fresh one.
        stop_strings: The request's.

    Attributes:
        num_tokens: Output tokens followed so far.
    """

    def __init__(self, detokenizer: Detokenizer, stop_strings: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stop_strings)
        self.num_tokens = 0

    def push(self, token: int, *, armed: bool = True) -> str | None:
        """Add a token; return the stop string that it completes, if it completes one.

        Args:
            token: The next output token.
            armed: False while `min_tokens` is not reached.
        """
        self.num_tokens += 1
        return self._matcher.push(self._detokenizer.push(token), armed=armed).stop_string


class StopWatch:
    """The detectors of all requests that have stop strings.

    Args:
        tokenizer: Turns tokens into text; None when there is none, and then stop strings cannot
            be looked for.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._detectors: dict[int, StopDetector] = {}

    def check(self, lane: Lane, token: int) -> str | None:
        """Return the stop string that a lane's new token completes, if it completes one.

        Args:
            lane: The lane that sampled; its tokens are the sequence without the new one.
            token: The new token.

        Raises:
            ConfigError: If the request has stop strings and there is no tokenizer.

        Changes:
            The request's detector; after a step that was not taken in it is made anew.

        Cost:
            Constant per token; the length of the output when the detector is made anew.
        """
        params = lane.sampling
        if params is None or not params.stop_strings:
            return None
        if self._tokenizer is None:
            raise ConfigError(
                "stop strings need a tokenizer, and it is switched off",
                hint="use stop_token_ids, or serve without --skip-tokenizer-init",
            )
        detector = self._detectors.get(lane.request_id)
        if detector is None or detector.num_tokens != lane.output_index:
            detector = StopDetector(self._tokenizer.detokenizer(), params.stop_strings)
            for past in lane.tokens[lane.num_prompt : lane.num_prompt + lane.output_index].tolist():
                detector.push(past, armed=False)
            self._detectors[lane.request_id] = detector
        return detector.push(token, armed=lane.output_index >= params.min_tokens)

    def forget(self, request_id: int) -> None:
        """Drop the detector of a request; unknown ids are ignored."""
        self._detectors.pop(request_id, None)
