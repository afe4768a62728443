"""The sentences that the small texts of these tests are made of."""

SENTENCES = [
    "Rain falls when the drops in a cloud grow too heavy to float.",
    "Iron rusts in water and air, and the rust takes more room than the iron.",
    "A prime number has no divisors but one and itself.",
    "The moon goes around the earth in a little less than a month.",
    "Bread rises because yeast makes gas out of sugar.",
    "A river is fast where it is narrow and slow where it is wide.",
]
