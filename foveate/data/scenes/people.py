"""Ten people's answers to a question: mostly the true one, in several spellings, with a little disagreement."""

from __future__ import annotations

from foveate.data.scenes.dice import Dice
from foveate.data.scenes.language import NUMBERS, SYNONYMS
from foveate.data.scenes.world import VALUES

PEOPLE = 10
# How many of the ten say something else, drawn evenly: 0.7 on average, never more than 3.
DISSENT = (0, 0, 0, 0, 0, 0, 1, 1, 2, 3)


def spellings(answer: str) -> tuple[str, ...]:
    """Ways to write an answer that the official normalisation takes for the same.

    >>> spellings("2"), spellings("star")
    (('two', '2.'), ('Star', 'star.', 'a star', 'the star'))
    """
    if answer.isdigit():
        return NUMBERS[int(answer)], answer + "."
    plain = (answer.capitalize(), answer + ".")
    return (*plain, f"a {answer}", f"the {answer}") if answer in VALUES["shape"] else plain


def poll(answer: str, rivals: tuple[str, ...], dice: Dice) -> tuple[str, ...]:
    """Ten answers, at least seven of which are the true one after normalisation.

    Who dissents gives a rival or, where there is one, a synonym that normalisation keeps apart ("gray" for "grey"); of
    the others one in eight spells the answer differently.

    >>> poll("yes", ("no",), Dice(1))
    ('yes', 'yes', 'yes', 'yes', 'yes', 'Yes', 'yes', 'yes', 'yes', 'yes')
    """
    synonyms = SYNONYMS.get(answer, (answer,))[1:]
    others = dice.pick(DISSENT)
    answers = [dice.pick(synonyms if synonyms and dice.below(2) else rivals) for _ in range(others)]
    answers += [answer if dice.below(8) else dice.pick(spellings(answer)) for _ in range(PEOPLE - others)]
    return tuple(dice.shuffled(answers))
