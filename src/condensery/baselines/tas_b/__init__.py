"""TAS-Balanced (Hofstätter et al. 2021): batches of one topic, and pairs balanced by a teacher's margins."""
