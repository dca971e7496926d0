"""The words of the stories: heroes, names, things, places and small details."""

from dataclasses import dataclass


def _words(text: str) -> list[str]:
    return text.split()


# --- heroes -----------------------------------------------------------------------------------

HEROES = _words("""
fox rabbit bear mouse cat dog owl hedgehog squirrel badger otter frog turtle tortoise duck penguin
pig lamb sheep goat horse pony cow donkey elephant lion tiger monkey giraffe zebra kangaroo koala
panda wolf deer beaver mole bat sparrow robin crow parrot swan goose hen rooster snail bee ant
butterfly spider crab seal kitten puppy bunny piglet duckling hamster camel llama raccoon lizard
crocodile moose reindeer dragon unicorn dinosaur robot girl boy princess prince knight wizard witch
fairy giant pirate gnome elf ghost monster king queen sailor baker farmer astronaut clown
""")

UNSEEN_HEROES = ["leopard", "weasel", "pelican", "toad", "inventor", "yak", "goblin", "gardener"]

FEMALE_HEROES = frozenset({"girl", "princess", "queen", "witch", "hen", "cow"})
MALE_HEROES = frozenset({"boy", "prince", "king", "rooster"})

HERO_ADJECTIVES = _words("""
little small young brave shy clever kind curious gentle cheerful quiet lonely sleepy happy funny
friendly tiny proud busy hungry
""")

FRIENDS = _words("""
owl badger tortoise mouse otter hedgehog crow squirrel duck frog goat beaver mole rabbit robin goose
sheep cat dog bear fox deer pony donkey sparrow penguin monkey raccoon heron
""")

FRIEND_ADJECTIVES = _words("old wise kind friendly cheerful clever gentle helpful young")

# --- names ------------------------------------------------------------------------------------

MALE_NAMES = _words("""
Pip Max Leo Finn Tom Ben Sam Otto Oscar Hugo Milo Theo Felix Jack Noah Oliver Henry George Arthur
Alfie Charlie Archie Toby Jasper Rufus Bruno Gus Ned Rex Ollie Barnaby Basil Monty Percy Wilbur
Chester Rusty Buster Bramble Moss Dusty Biscuit Ziggy Boris Casper Dexter Edgar Franklin Gilbert
Harold Igor Jonas Kip Lewis Magnus Nico Orson Pablo Quentin Remy Silas Tobias Umber Victor Walter
Xavier Yusuf Zack Ahmed Kofi Ravi Kenji Mateo Lars Ivan Diego Omar Sven Emil Anton Luca Marco Tariq
Bolt Sparky Spike Ember Ash Bruce Clyde Duncan
""")

FEMALE_NAMES = _words("""
Lily Daisy Rosie Poppy Mia Ella Anna Emma Lucy Molly Ruby Bella Clara Nora Ivy Hazel Willow Luna
Stella Maya Zoe Lola Penny Millie Tilly Betsy Flora Olive Pearl Violet Iris Fern Juniper Marigold
Clover Maple Honey Ginger Pepper Nutmeg Sky Star Amber Beatrix Coco Dora Edith Freya Greta Hattie
Ines Jade Kira Lotte Matilda Nina Opal Petra Queenie Rosa Sofia Thea Una Vera Wanda Xenia Yara
Zelda Amina Priya Yuki Leila Carmen Ingrid Mila Anya Fatima Chloe Grace Alice Sally Heidi Frida
Dot Pebble Misty Snowy Bluebell Tansy Mabel Ada
""")

UNSEEN_MALE_NAMES = _words("Albert Bertie Cosmo Dougal Ernest Fergus Horace Jarvis Linus Winston")
UNSEEN_FEMALE_NAMES = _words("Agnes Bonnie Cora Delilah Esme Gwen Hilda Imogen Maud Sylvie")

# Words put together from these teach the model to copy a word it has never seen.
NAME_STARTS = _words("""
Ba Be Bi Bo Bu Da De Do Fa Fi Fo Ga Go Gri Ha Hi Ja Jo Ka Ki Ko La Le Li Lo Lu Ma Me Mi Mo
No Pa Pi Po Qui Ra Ri Ro Sa Se Si So Ta Te To Tu Va Vi Wa Wi Ya Yo Za Zi Zo Bra Cla Fre
Gla Plo Sti Tri Sno Dra
""")
NAME_MIDDLES = _words("l n r m b d z t v s ll nn rr mb nd lt st nk ff")
NAME_ENDINGS = _words("""
a o i y e in en an us or el ie ey ina ello ara eth im ow ita ax ert ula indo
""")

# --- things -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Thing:
    """The thing of a story, with the verbs for it ("fly it", "flew it")."""

    noun: str
    kind: str  # hard (it cracks), soft (it tears), big (nobody loses it), food, wild (not made)
    use: str = ""
    used: str = ""


_THINGS = """
kite, soft, fly it as high as the clouds, flew it as high as the clouds
ball, soft, bounce it up and down, bounced it up and down
drum, hard, play a merry beat on it, played a merry beat on it
lantern, hard, light the way with it, lit the way with it
boat, hard, sail it in a puddle, sailed it in a puddle
lamp, hard, read by its warm light, read by its warm light
hat, soft, wear it on sunny days, wore it proudly
scarf, soft, wear it on cold days, wore it with a smile
umbrella, soft, dance under it, danced under it
bell, hard, ring it softly, rang it softly
book, soft, read it from start to end, read it from start to end
map, soft, study it by candlelight, studied it by candlelight
key, hard, keep it on a string, kept it on a string
box, hard, keep secrets in it, kept a secret in it
basket, hard, carry berries in it, carried berries in it
wagon, big, pull it up and down the lane, pulled it up and down the lane
bicycle, big, ride it down the lane, rode it down the lane
spoon, hard, stir soup with it, stirred the soup with it
cup, hard, drink warm milk from it, drank warm milk from it
teapot, hard, make sweet tea in it, made sweet tea in it
blanket, soft, curl up under it, curled up under it
pillow, soft, rest on it, rested on it
quilt, soft, snuggle up in it, snuggled up in it
coat, soft, wear it in the rain, wore it in the rain
mitten, soft, keep warm with it, kept warm with it
flute, hard, play soft tunes on it, played a soft tune on it
whistle, hard, blow it loudly, blew it loudly
trumpet, hard, play loud songs on it, played a loud song on it
violin, hard, play sweet songs on it, played a sweet song on it
guitar, hard, play happy songs on it, played a happy song on it
harp, hard, play gentle songs on it, played a gentle song on it
balloon, soft, watch it float, watched it float
ribbon, soft, make it dance in the air, made it dance in the air
button, hard, polish it until it shone, polished it until it shone
coin, wild, spin it on a stone, spun it on a stone
pebble, wild, roll it along the ground, rolled it along the ground
shell, wild, hear the sea in it, heard the sea in it
feather, wild, tickle friends with it, tickled everyone with it
leaf, wild, watch it flutter, watched it flutter
flower, wild, smell its sweet scent, smelled its sweet scent
acorn, wild, roll it down the hill, rolled it down the hill
pumpkin, wild, carve a funny face in it, carved a funny face in it
apple, food, polish it until it gleamed, polished it until it gleamed
cake, food, share it with everyone, shared it with everyone
pie, food, share it with friends, shared it with friends
telescope, hard, look at the stars with it, looked at the stars with it
compass, hard, find the way north with it, found the way north with it
clock, hard, listen to it tick, listened to it tick
mirror, hard, make funny faces in it, made funny faces in it
paintbrush, hard, paint rainbows with it, painted a rainbow with it
crayon, hard, draw pictures with it, drew a picture with it
pencil, hard, write poems with it, wrote a poem with it
letter, soft, read it again and again, read it again and again
puppet, soft, put on little shows with it, put on a little show with it
doll, soft, tell it stories, told it a story
teddy bear, soft, hug it tight, hugged it tight
toy train, hard, push it along the floor, pushed it along the floor
toy rocket, hard, zoom around with it, zoomed around with it
snow globe, hard, watch the snow swirl in it, watched the snow swirl in it
marble, hard, roll it in circles, rolled it in circles
crown, hard, wear it like a king, wore it like a king
ring, hard, watch it sparkle, watched it sparkle
necklace, hard, watch it glitter, watched it glitter
wand, hard, wave it in the air, waved it in the air
cape, soft, twirl around in it, twirled around in it
sword, hard, play knights with it, played knights with it
shield, hard, play castles with it, played castles with it
rope, soft, skip with it, skipped with it
bucket, hard, fill it with water, filled it with water
shovel, hard, dig holes with it, dug a hole with it
broom, hard, sweep the floor with it, swept the floor with it
sled, big, slide down slopes on it, slid down a slope on it
tent, big, camp in it, camped in it
jar, hard, fill it with honey, filled it with honey
music box, hard, listen to its tune, listened to its tune
camera, hard, take pictures with it, took a picture with it
puzzle, hard, put it together, put it together
spinning top, hard, spin it on the floor, spun it on the floor
candle, hard, watch its warm glow, watched its warm glow
backpack, soft, wear it on long walks, wore it on a long walk
skateboard, big, ride it down the hill, rode it down the hill
"""

# Nouns with no use of their own: any of GENERAL_USES will do, as for a noun never seen before.
_PLAIN_THINGS = """
hard: vase wheel bowl plate fork hammer saw magnet wrench robot statue trophy medal badge bottle
hard: lock kettle mug tray rake axe arrow oar globe radio phone fan flask toy_car toy_ship pan pin
hard: tin_soldier toy_plane snow_shovel hairbrush tambourine xylophone brooch bracelet kazoo
big: rowing_boat fishing_rod rocking_horse treasure_chest chair table stool ladder barrel suitcase
big: scooter wheelbarrow piano
soft: sock shoe glove shirt dress cushion towel flag sail net bag sack purse parcel card picture
soft: poster painting note diary sponge sweater jumper belt tie wig mask costume
food: biscuit bun muffin pancake sandwich carrot turnip potato melon peach pear plum cookie lollipop
wild: stick rock stone egg nut bone tooth crystal gem diamond ruby jewel rose tulip daffodil nest
wild: sunflower pine_cone star seashell mushroom
"""

GENERAL_USES = (
    ("take it everywhere", "took it everywhere"),
    ("show it to everyone", "showed it to everyone"),
    ("look at it for hours", "looked at it for a long time"),
    ("play with it", "played with it happily"),
    ("keep it close", "kept it close"),
)

# Told of only if the request names them: so the model learns to take any noun from a request.
RARE_THINGS = _words("""
accordion ukulele bassoon clarinet trombone saxophone organ gong rattle helicopter airplane tractor
truck canoe kayak raft submarine tank castle tower lampshade chandelier thermometer
calculator keyboard screwdriver chisel pickaxe wheelchair ornament slipper sandal
bonnet apron pyjama kilt tiara sceptre goblet chalice jug ladle whisk grater sieve cork
pretzel doughnut croissant burger pizza noodle dumpling omelette cheese pineapple mango banana
strawberry cherry lemon lime coconut walnut chestnut onion cabbage cucumber tomato pepper
notebook dictionary newspaper stamp envelope calendar poem song secret riddle cloud rainbow
snowflake icicle volcano planet comet meteor cactus bush seed root twig branch
log cobweb cocoon fossil skull claw horn tail scale spell potion cauldron broomstick amulet
talisman treasure lightsaber joystick battery bulb switch plug socket spring cog gear engine
parachute trampoline swing slide seesaw dartboard racket puck javelin glider
""")
RARE_HEROES = _words("""
leprechaun mermaid ogre vampire werewolf alien superhero ninja detective doctor nurse
teacher chef pilot painter singer dancer fisherman shepherd blacksmith tailor miller hunter captain
cyclops centaur phoenix griffin genie imp pixie sprite yeti sphinx scarecrow snowman mummy
whale dolphin shark octopus squid jellyfish starfish lobster shrimp salmon trout eel walrus
caterpillar beetle ladybird grasshopper cricket dragonfly firefly wasp moth worm slug centipede
scorpion snake python cobra gecko iguana chameleon alligator newt salamander eagle hawk falcon
vulture peacock turkey chicken pigeon dove magpie raven stork flamingo ostrich emu kiwi puffin
gull swallow wren lark toucan hippo rhino buffalo bison gazelle antelope hyena jackal coyote
cheetah panther jaguar lynx cougar gorilla baboon lemur sloth armadillo anteater platypus wombat
opossum chipmunk gopher ferret mink stoat hare rat gerbil poodle terrier mule calf foal fawn cub
""")

UNSEEN_THINGS = ["helmet", "banjo", "cart", "pearl", "hammock", "waffle", "torch", "lute"]


def _things() -> list[Thing]:
    return [Thing(*line.split(", ")) for line in _THINGS.strip().splitlines()]


def _plain_things() -> list[Thing]:
    rows = (line.split(": ") for line in _PLAIN_THINGS.strip().splitlines())
    return [Thing(noun.replace("_", " "), kind) for kind, nouns in rows for noun in nouns.split()]


THINGS = _things()
PLAIN_THINGS = _plain_things()

THING_ADJECTIVES = _words("""
red blue green yellow purple orange pink white black brown silver golden small little tiny big large
old new bright shiny striped spotted beautiful special magic lovely strange round
""")

# --- places -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a story: "in" + "the forest", and a spot in it where a thing can be hidden."""

    preposition: str
    noun: str
    spot: str
    indoors: bool

    @property
    def phrase(self) -> str:
        """Return a phrase such as "in the forest"."""
        return f"{self.preposition} {self.noun}"


_PLACES = """
in the forest, under a fern
in the woods, behind an old oak
in the meadow, behind a clump of daisies
by the river, between two smooth stones
at the beach, beside a pile of shells
on the hill, next to a grey rock
in the garden, under a big leaf
at the market, beneath an apple cart
by the lake, among the reeds
in the orchard, in the long grass
at the farm, under a hay cart
at the harbour, inside a coil of rope
in the village, beside the fountain
on the island, beneath a palm tree
in the park, under a bench
by the waterfall, behind a mossy log
in the valley, beside a snowdrift
in the desert, in the shade of a cactus
on the mountain, between two rocks
in the jungle, under a giant leaf
by the pond, beside a lily pad
in the swamp, on top of a stump
on the bridge, beside a wooden post
in the city, next to a red letter box
by the sea, in a rock pool
on the moon, beside a dusty crater
in the pumpkin patch, under the biggest pumpkin
at the playground, under the slide
in the field, behind a haystack
at the old mill, behind a sack of flour*
in the barn, under the straw*
in the cave, on a ledge of stone*
in the library, behind a row of books*
in the castle, behind a heavy curtain*
at the school, under a desk*
in the bakery, behind the big oven*
at the train station, under a seat*
at the lighthouse, behind the winding stairs*
in the toy shop, on the lowest shelf*
in the greenhouse, between two flower pots*
at the museum, behind a marble statue*
"""


def _place(line: str) -> Place:
    where, spot = line.rstrip("*").split(", ")
    preposition, noun = where.split(" ", 1)
    return Place(preposition, noun, spot, line.endswith("*"))


PLACES = [_place(line) for line in _PLACES.strip().splitlines()]

# --- small details ----------------------------------------------------------------------------

HOMES = """
in a little house on a hill
at the edge of a quiet wood
in a cosy house with a blue door
beside a slow river
in a warm den under an oak tree
at the end of a winding lane
in a village by the sea
in a tiny house with a round window
not far from a green valley
in a snug corner of the world
""".strip().splitlines()

DAYS = """
One morning
One sunny morning
One bright day
One day
One afternoon
Early one morning
One fine day
One Saturday
One spring day
On a warm afternoon
""".strip().splitlines()

HOBBIES = """
singing
counting the clouds
telling jokes
climbing trees
baking bread
making new friends
dancing
going on long walks
asking questions
picking berries
looking at the stars
humming little tunes
splashing in puddles
collecting leaves
""".strip().splitlines()

FOODS = """
warm bread
blueberry pie
honey cakes
hot soup
sweet plums
buttered toast
apple tarts
berry jam
pancakes
ginger biscuits
""".strip().splitlines()

GLAD = _words("happy glad proud pleased")
