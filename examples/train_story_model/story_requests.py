"""Templates of requests in many phrasings, each with the contents that it names.

`{who}` is a hero ("a brave fox named Pip"), `{what}` a thing ("a red kite"), `{where}` empty or a
place with a space before it (" in the forest").
"""

WHO_AND_WHAT = (
    "Tell me a story about {who} and {what}{where}.",
    "Tell me a story about {who} and {what}{where}.",
    "Tell me a story about {who} with {what}{where}.",
    "Tell me a short story about {who} and {what}{where}.",
    "Tell a story about {who} and {what}{where}.",
    "Can you tell me a story about {who} and {what}{where}?",
    "Could you tell me a story about {who} and {what}, please?",
    "Please tell me a story about {who} and {what}{where}.",
    "Write a story about {who} and {what}{where}.",
    "Write a short story about {who} and {what}{where}.",
    "Write me a story with {who} and {what}.",
    "I want a story about {who} and {what}{where}.",
    "I would like a story about {who} and {what}{where}.",
    "I'd like to hear about {who} and {what}.",
    "A story about {who} and {what}{where}",
    "A story about {who} and {what}{where}, please.",
    "a bedtime story about {who} and {what}",
    "A tale of {who} and {what}{where}.",
    "Story: {who}, {what}",
    "{who} and {what}{where}",
    "{who}, {what}",
    "{who} with {what}{where}",
    "Once upon a time there was {who} with {what}",
    "Tell me about {who} and {what}{where}.",
    "Make up a story about {who} and {what}{where}.",
    "My child wants a story about {who} and {what}.",
    "Let's have a story about {who} and {what}{where}.",
    "Do you know a story about {who} and {what}?",
    "Give me a story with {who} and {what} in it.",
    "How about a story with {who} and {what}{where}?",
    "The hero is {who}. The story is about {what}.",
    "Hello! Tell me a story about {who} and {what}{where}.",
)

WHO_ONLY = (
    "Tell me a story about {who}{where}.",
    "Tell me a story about {who}{where}.",
    "Can you tell me a story about {who}{where}?",
    "Write a story about {who}{where}.",
    "A story about {who}{where}",
    "a story about {who}",
    "A story about {who}{where}, please.",
    "I want a story about {who}{where}.",
    "Please tell me about {who}{where}.",
    "Once upon a time there was {who}",
    "Do you know a story about {who}?",
    "{who}{where}",
    "{who}",
    "Let's have a story with {who}{where}.",
    "Make up a story about {who}.",
)

WHAT_ONLY = (
    "Tell me a story about {what}{where}.",
    "Tell me a story about {what}{where}.",
    "Can you tell me a story with {what} in it?",
    "Write a story about {what}{where}.",
    "A story about {what}{where}",
    "a story about {what}",
    "A story with {what}{where}, please.",
    "I want a story about {what}.",
    "{what}",
    "{what}{where}",
    "Do you know a story about {what}?",
    "Make up a story about {what}.",
    "How about a story with {what}?",
)

WHERE_ONLY = (
    "Tell me a story that happens{where}.",
    "Tell me a story{where}.",
    "A story{where}",
    "What happened{where}?",
)

NOTHING = """
hello
Hello
Hello!
hi
Hi
Hi there
hey
Hello there!
Good morning
Good evening!
How are you?
Once upon a time
Once upon a time,
Once upon a time there was
Once upon a time there lived
Long ago
Tell me a story
Tell me a story.
Tell me a story, please.
tell me a story
Can you tell me a story?
Tell me a short story.
Tell me a bedtime story.
Tell me something nice.
A story, please.
a story
story
I want a story.
Write a story.
Write a short story for children.
Any story.
Surprise me.
I am bored.
Who are you?
What can you do?
What is your name?
What is the capital of France?
What is two plus two?
Why is the sky blue?
What is the meaning of life?
Write a poem.
Tell me a joke.
Help
help me
test
This is a test.
ok
yes
no
?
Thank you!
Good night
Are you there?
Please
What is the weather like today?
Explain how a computer works.
The quick brown fox jumps over the lazy dog.
""".strip().splitlines()

AGAIN = """
Another one, please.
Another one
Tell me another story.
One more!
one more, please
Again!
Thank you! Tell me another one.
And now another story.
That was nice. Another one?
more
""".strip().splitlines()

# Requests that settle the plot.
WITH_PLOT = {
    "lost": ("Tell me a story about {who} who lost {what}{where}.", "How {who} lost {what}"),
    "finders": (
        "Tell me a story about {who} who found {what}{where}.",
        "{who} finds {what}{where}",
    ),
    "wish": ("Tell me a story about {who} who wanted {what}.", "{who} wishes for {what}"),
    "sharing": ("Tell me a story about {who} who would not share {what}.",),
    "contest": ("Tell me a story about {who} who made {what}.", "{who} makes {what}"),
    "broken": ("Tell me a story about {who} who broke {what}.", "How {who} broke {what}"),
    "magic": ("Tell me a story about {who} and a magic {what}.",),
    "birthday": ("Tell me a story about {who} who got {what} for a birthday.",),
    "practice": ("Tell me a story about {who} who learned to use {what}.",),
}
