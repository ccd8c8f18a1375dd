"""From matches to a story: the first failure, those that others brought about, those that the job survived."""



__all__ = [
   
]
