"""Averaged word vectors, such as GloVe's (Pennington et al. 2014), as a baseline of the sentence tasks."""
