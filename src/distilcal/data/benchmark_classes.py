"""Class names of benchmarks; those with the same classes share them, so that one can be the out-of-domain set of another."""

from __future__ import annotations


def _names(listed: str) -> tuple[str, ...]:
    return tuple(" ".join(name.split()) for name in listed.split(","))


EMOTIONS = ("anger", "disgust", "fear", "joy", "neutral", "sadness", "surprise")
EMPATHY = ("none", "some")
POLARITY = ("negative", "positive")
NLI = ("entailment", "neutral", "contradiction")
ANSWERED = ("entailment", "not_entailment")
PARAPHRASE = ("different", "paraphrase")
FOUR = ("0", "1", "2", "3")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = _names("T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot")
TINY = _names(
    """Egyptian cat, golden retriever, goldfish, jellyfish, orange, school bus, sports car, steel arch bridge,
    sulphur butterfly, teapot"""
)
NEWSGROUPS = _names(
    """alt.atheism, comp.graphics, comp.os.ms-windows.misc, comp.sys.ibm.pc.hardware, comp.sys.mac.hardware, comp.windows.x,
    misc.forsale, rec.autos, rec.motorcycles, rec.sport.baseball, rec.sport.hockey, sci.crypt, sci.electronics, sci.med,
    sci.space, soc.religion.christian, talk.politics.guns, talk.politics.mideast, talk.politics.misc, talk.religion.misc"""
)
CIFAR100 = _names(
    """apple, aquarium_fish, baby, bear, beaver, bed, bee, beetle, bicycle, bottle, bowl, boy, bridge, bus, butterfly, camel,
    can, castle, caterpillar, cattle, chair, chimpanzee, clock, cloud, cockroach, couch, crab, crocodile, cup, dinosaur,
    dolphin, elephant, flatfish, forest, fox, girl, hamster, house, kangaroo, keyboard, lamp, lawn_mower, leopard, lion,
    lizard, lobster, man, maple_tree, motorcycle, mountain, mouse, mushroom, oak_tree, orange, orchid, otter, palm_tree,
    pear, pickup_truck, pine_tree, plain, plate, poppy, porcupine, possum, rabbit, raccoon, ray, road, rocket, rose, sea,
    seal, shark, shrew, skunk, skyscraper, snail, snake, spider, squirrel, streetcar, sunflower, sweet_pepper, table,
    tank, telephone, television, tiger, tractor, train, trout, tulip, turtle, wardrobe, whale, willow_tree, wolf, woman,
    worm"""
)
