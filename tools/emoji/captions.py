"""Scenes and the sentences that describe them: what is drawn where, and how a person might ask for it.

A scene is one or two emoji on a plain ground. What a caption does not say has a fixed default (white
ground, one emoji large in the middle, the first of two on the left), so that prompts are predictable.
"""
import random

import numpy as np

from sprites import SIZES, held_out

COLOURS = {
    "white": (255, 255, 255), "black": (20, 20, 22), "gray": (150, 154, 158), "red": (222, 45, 45),
    "orange": (250, 145, 30), "yellow": (252, 220, 60), "green": (60, 165, 75), "light green": (175, 225, 150),
    "blue": (40, 100, 220), "light blue": (150, 205, 250), "dark blue": (20, 35, 95), "cyan": (40, 195, 205),
    "purple": (130, 65, 190), "pink": (250, 150, 190), "brown": (125, 80, 50), "beige": (240, 225, 195),
}
COLOUR_WORDS = {"gray": ["gray", "grey"], "cyan": ["cyan", "teal", "turquoise"], "purple": ["purple", "violet"],
                "light blue": ["light blue", "sky blue"], "dark blue": ["dark blue", "navy", "navy blue"],
                "light green": ["light green", "mint"], "beige": ["beige", "cream"]}
TINTS = ["red", "orange", "yellow", "green", "blue", "purple", "pink", "cyan", "gray", "brown"]
# The short form "on blue" is said of a ground only.
GROUNDS = [("{o} on {a} {c} background", 40), ("{o} with {a} {c} background", 12), ("{o} on {c} background", 8),
           ("{o} on {c}", 8), ("{o}, {c} background", 8), ("{o} against {a} {c} background", 5),
           ("{o} in front of {a} {c} background", 4), ("{a} {c} background with {o}", 4), ("{o} over {a} {c} background", 3),
           ("{c} background, {o}", 3), ("{o} on {a} {c} backdrop", 3), ("{o} {c} background", 2)]
LEFT_RIGHT = [("{x} next to {y}", 26), ("{x} and {y}", 22), ("{x} to the left of {y}", 14), ("{y} to the right of {x}", 14),
              ("{x} beside {y}", 7), ("{x} with {y}", 6), ("{x} left of {y}", 4), ("{y} right of {x}", 4), ("{x}, {y}", 3),
              ("{x} on the left and {y} on the right", 4), ("{x} near {y}", 3)]
ABOVE_BELOW = [("{x} above {y}", 32), ("{y} below {x}", 22), ("{x} on top of {y}", 16), ("{y} under {x}", 14),
               ("{x} over {y}", 8), ("{y} beneath {x}", 5), ("{y} underneath {x}", 3)]
PREFIXES = [("", 84), ("a picture of ", 4), ("picture of ", 2), ("an image of ", 2), ("an emoji of ", 3), ("emoji of ", 1),
            ("a drawing of ", 2), ("a photo of ", 1), ("draw ", 1)]
SMALL, BIG = ["small", "tiny", "little", "mini"], ["big", "large", "huge", "giant"]
PLACES = {  # centre of the emoji and the words for it
    (32, 32): ["in the top left corner", "in the upper left corner", "in the top left", "top left", "at the top left"],
    (96, 32): ["in the top right corner", "in the upper right corner", "in the top right", "top right", "at the top right"],
    (32, 96): ["in the bottom left corner", "in the lower left corner", "in the bottom left", "bottom left", "at the bottom left"],
    (96, 96): ["in the bottom right corner", "in the lower right corner", "in the bottom right", "bottom right",
               "at the bottom right"],
    (32, 64): ["on the left", "on the left side", "at the left", "to the left"],
    (96, 64): ["on the right", "on the right side", "at the right", "to the right"],
    (64, 32): ["at the top", "on the top", "near the top"],
    (64, 96): ["at the bottom", "on the bottom", "near the bottom"],
    (64, 64): ["in the center", "in the middle", "in the centre", "centered"],
}
SINGLE, PAIR = 0.56, 0.38  # the rest are single emoji in shades of one colour
FIELDS = ("kind", "size", "x", "y")


def weighted(rng, options):
    return rng.choices([o for o, _ in options], [w for _, w in options])[0]


def article(word):
    # "an hourglass" and "a ufo" are the exceptions among the names used here.
    if word.startswith(("hour", "8 ")):
        return "an"
    return "an" if word[0] in "aeiou" and not word.startswith(("unic", "ufo", "uni")) else "a"


class Author:
    """Writes scenes and captions. Everything follows from the seed."""

    def __init__(self, classes, seed, held=False):
        self.classes, self.rng, self.held = classes, random.Random(seed), held  # held: only pairs kept out of training

    def thing(self, kind, before=""):
        """How an emoji is called, with the words before its name: "a small dog"."""
        rng, names = self.rng, self.classes[kind].names
        name, counts = names[0] if rng.random() < 0.7 else rng.choice(names)
        if not counts:
            before = before.strip()
            return f"{before} {name}".strip() if rng.random() < 0.95 else f"the {before} {name}".replace("  ", " ")
        text = before + name
        chance = rng.random()
        if chance < 0.68:
            return f"{article(text)} {text}"
        return f"the {text}" if chance < 0.76 else text

    def colour(self, name):
        return self.rng.choice(COLOUR_WORDS.get(name, [name]))

    def pick_size(self, low, high):
        return self.rng.choice([i for i, s in enumerate(SIZES) if low <= s <= high])

    def shift(self, value, by):
        return value + self.rng.randint(-by, by)

    def single(self, kind, tint=None):
        rng, chance = self.rng, self.rng.random()
        before = self.colour(tint) + " " if tint else ""
        if chance < 0.66:  # the default
            return self.thing(kind, before), [(kind, self.pick_size(96, 112), self.shift(64, 4), self.shift(64, 4))]
        if chance < 0.74:
            return self.thing(kind, f"{rng.choice(BIG)} {before}"), [(kind, self.pick_size(120, 128), self.shift(64, 1), self.shift(64, 1))]
        if chance < 0.82:
            return self.thing(kind, f"{rng.choice(SMALL)} {before}"), [(kind, self.pick_size(44, 52), self.shift(64, 6), self.shift(64, 6))]
        (x, y), words = rng.choice(list(PLACES.items()))
        small = rng.random() < 0.3
        size = self.pick_size(40, 48) if small else self.pick_size(56, 60)
        if (x, y) == (64, 64) and not small:
            size = self.pick_size(96, 112)
        if small:  # nearer to the edge
            x, y = (v + (0 if v == 64 else 6 if v > 64 else -6) for v in (x, y))
        text = self.thing(kind, (rng.choice(SMALL) + " " if small else "") + before)
        return f"{text} {rng.choice(words)}", [(kind, size, self.shift(x, 2), self.shift(y, 2))]

    def pair(self, kinds):
        rng, before, sizes = self.rng, ["", ""], [self.pick_size(52, 60)] * 2
        if rng.random() < 0.12:  # one of them, or both, of a stated size
            for i in rng.choice([(0,), (1,), (0, 1)]):
                big = rng.random() < 0.5
                before[i] = rng.choice(BIG if big else SMALL) + " "
                sizes[i] = self.pick_size(64, 72) if big else self.pick_size(36, 40)
        texts = [self.thing(k, b) for k, b in zip(kinds, before)]
        flat = rng.random() < 0.62
        text = weighted(rng, LEFT_RIGHT if flat else ABOVE_BELOW).format(x=texts[0], y=texts[1])
        places = [(32, 64), (96, 64)] if flat else [(64, 32), (64, 96)]
        return text, [(k, s, self.shift(x, 2), self.shift(y, 2)) for k, s, (x, y) in zip(kinds, sizes, places)]

    def kinds(self):
        while True:
            a, b = self.rng.randrange(len(self.classes)), self.rng.randrange(len(self.classes))
            kept_out = held_out(self.classes[a].emoji, self.classes[b].emoji)
            if a != b and kept_out == self.held:
                return [a, b]

    def scene(self):
        """(caption, sprites, ground, tint) of a random scene."""
        rng, chance, tint = self.rng, self.rng.random(), None
        if chance < SINGLE:
            text, sprites = self.single(rng.randrange(len(self.classes)))
        elif chance < SINGLE + PAIR:
            text, sprites = self.pair(self.kinds())
        else:
            tint = rng.choice(TINTS)
            kind = rng.randrange(len(self.classes))
            while any(word in name.split() for word in TINTS + ["black"] for name, _ in self.classes[kind].names):
                kind = rng.randrange(len(self.classes))  # "a green red heart" helps nobody
            text, sprites = self.single(kind, tint)
        ground = "white"
        if rng.random() < 0.5:
            ground = rng.choice(list(COLOURS))
            word = self.colour(ground)
            text = weighted(rng, GROUNDS).format(o=text, a=article(word), c=word)
        return self.finish(text), sprites, ground, tint

    def finish(self, text):
        rng = self.rng
        if not text.startswith(tuple(COLOURS)) and "background with" not in text:
            text = weighted(rng, PREFIXES) + text
        if rng.random() < 0.02:
            text += " emoji"
        if rng.random() < 0.08:
            text = text[0].upper() + text[1:]
        return text + ("." if rng.random() < 0.04 else "")


def pack_scenes(scenes):
    """Scenes as arrays, the form Painter.draw takes."""
    n = len(scenes)
    out = {f: np.full((n, 2), -1 if f == "kind" else 0, np.int16) for f in FIELDS}
    out["ground"] = np.array([COLOURS[s[2]] for s in scenes], np.int16)
    out["tint"] = np.array([COLOURS[s[3]] if s[3] else (-1, -1, -1) for s in scenes], np.int16)
    for i, (_, sprites, _, _) in enumerate(scenes):
        for k, sprite in enumerate(sprites):
            for field, value in zip(FIELDS, sprite):
                out[field][i, k] = value
    return out


if __name__ == "__main__":
    from sprites import read_classes
    author = Author(read_classes(), 0)
    for _ in range(60):
        print(author.scene())
